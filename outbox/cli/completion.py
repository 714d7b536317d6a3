"""`outbox completion SHELL`: print the script that makes a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that makes the shell complete commands, options, and names of destinations, types and actors.

    For bash, add this line to ~/.bashrc: eval "$(outbox completion bash)"
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"The installed version of click has no completion for {shell}.")
    click.echo(kind(context.find_root().command, {}, "outbox", "_OUTBOX_COMPLETE").source())
