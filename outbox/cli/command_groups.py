"""The help of the program: its commands by what operators do with them, and examples."""

from __future__ import annotations

import os

import click

# Every command is in one of these.
GROUPS = {
    "Look": (
        *("status", "doctor", "list", "show", "keys", "destinations", "streams", "periodic", "schema", "compat"),
        *("audit", "bulk", "metrics", "health", "prove", "tail", "export"),
    ),
    "Change": (
        *("retry", "replay", "skip", "fail", "delete", "pause", "resume", "throttle", "recover", "drain", "retire"),
        *("erase", "archive", "cleanup"),
    ),
    "Run": ("up", "worker", "scheduler", "consume", "deliver", "dashboard", "emit"),
    "Set up": ("init", "encryption-key", "reencrypt", "completion", "version"),
}
EXAMPLES = """\b
Examples:
  outbox status --watch                         what waits, what failed and why
  outbox list --status failed --since 2h        the failed events of the last two hours
  outbox show 01a1f5ae…ed8269                   one of them, with its attempts
  outbox retry --destination crm --dry-run      what a retry would change
  outbox pause crm --for 30m                    send crm nothing for half an hour
"""


class CommandGroups(click.Group):
    """A group of commands that lists them by what they are for."""

    def invoke(self, ctx: click.Context) -> object:
        # https://no-color.org: any value but an empty one. Otherwise click colours what a terminal shows.
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        grouped = {name for names in GROUPS.values() for name in names}
        others = [name for name in self.list_commands(ctx) if name not in grouped]
        for title, names in (GROUPS | {"Other": tuple(others)}).items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(name, command.get_short_help_str(60)) for name, command in found if command is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
