"""`outbox encryption-key`: make a key for OUTBOX_ENCRYPTION_KEYS."""

from __future__ import annotations

import click

from outbox.encryption.keys import new_key


@click.command(name="encryption-key", short_help="Make a key for OUTBOX_ENCRYPTION_KEYS.")
def encryption_key() -> None:
    """Print a new random key for OUTBOX_ENCRYPTION_KEYS.

    Standard output gets the key alone, standard error its id, by which the table and messages name it. Keep the key
    where you keep other secrets: without it the rows that it has encrypted can't be delivered.
    """
    key = new_key()
    click.echo(key.text)
    click.echo(f"Its id is {key.id}.", err=True)
