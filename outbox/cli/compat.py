"""`outbox compat`: before a deployment, try the new code on what is in the table."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from outbox.admin.compat import Compatibility, check_compatibility
from outbox.application_modules import import_modules
from outbox.cli.options import json_option
from outbox.cli.output import echo_json, one_line
from outbox.current_outbox import current

# The exit code if the new code would not understand everything.
PROBLEMS = 1
MOST_PRINTED = 50


@click.command(short_help="Check new code against what is in the table.")
@click.argument("modules", metavar="MODULE...", nargs=-1, required=True)
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=1_000,
    show_default=True,
    help="Read at most this many unfinished events, as many failed ones, and as many of the newest.",
)
@click.option(
    "--elsewhere", metavar="NAME", multiple=True, help="Other workers go on to have this destination; may be repeated."
)
@json_option
def compat(modules: tuple[str, ...], limit: int, elsewhere: tuple[str, ...], as_json: bool) -> None:
    """Check the code of MODULE, before it is deployed, against what is in the table. It changes nothing.

    It reads unfinished, failed and recent events through the classes and upcasters that MODULE declares, and says which
    of them it would not understand, which types no destination wants, and which destinations that workers have recorded
    are missing. Name all modules that your workers load. The exit code is 1 if there is a problem.
    """
    import_modules(modules)
    box = current()
    box.check_schema()
    found = check_compatibility(box, limit=limit, elsewhere=elsewhere)
    if as_json:
        problems = [asdict(each) for each in found.problems.values()]
        echo_json({"looked_at": found.looked_at, "limited": found.limited, "problems": problems})
    else:
        _print(found)
    sys.exit(PROBLEMS if found.problems else 0)


def _print(found: Compatibility) -> None:
    for problem in list(found.problems.values())[:MOST_PRINTED]:
        events = "" if not problem.events else f" ({problem.events:,} events, such as {problem.example})"
        click.echo(f"{problem.kind}: {one_line(problem.what)}{events}")
    if len(found.problems) > MOST_PRINTED:
        click.echo(f"{len(found.problems) - MOST_PRINTED:,} more problems are not printed; --json has all of them.")
    counts = ", ".join(f"{count:,} {name}" for name, count in found.looked_at.items())
    limited = f"; of {', '.join(found.limited)} there may be more (--limit)" if found.limited else ""
    click.echo(f"Events that were looked at: {counts}{limited}.")
    click.echo(f"{len(found.problems):,} problems." if found.problems else "This code understands all of them.")
