"""`outbox completion bash`: what makes the shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print a script that makes a shell complete `outbox`.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that makes the shell complete commands and options.

    For bash: eval "$(outbox completion bash)" in ~/.bashrc.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click knows no completion for {shell}.")
    click.echo(kind(context.find_root().command, {}, "outbox", "_OUTBOX_COMPLETE").source())
