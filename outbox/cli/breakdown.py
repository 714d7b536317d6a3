"""Print which events an action would change, for `--dry-run`."""

from __future__ import annotations

from outbox.cli.output import echo_table
from outbox.operations.breakdown import Breakdown
from outbox.operations.count import Count


def echo_breakdown(found: Breakdown) -> None:
    """Print a line for each type and status, the largest first."""
    if not found.parts:
        return
    rows: list[tuple[object, ...]] = [
        (Count(part.count), part.status, part.kind, part.name, part.oldest, part.newest) for part in found.parts
    ]
    if found.others:
        rows.append((Count(found.others), "", "", "(others)", None, None))
    echo_table(("events", "status", "kind", "type or actor", "oldest (UTC)", "newest (UTC)"), rows, right=[0])
