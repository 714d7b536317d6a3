"""Print tables for people, and JSON for programs.

Tables are printed to a terminal or to a pipe. In a terminal, only the last column is cut to fit the width, so that ids
stay complete and can be copied. In a pipe nothing is cut or coloured: each row is one line, for grep and awk.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from outbox.events.job_key import shown_key
from outbox.storage.models import JOB, OutboxEvent
from outbox.text import printable, shorten

GAP = "  "
# The last column is never cut to less than this.
MIN_WIDTH = 12


def echo_table(head: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> None:
    """Print a table. Each column is as wide as its content; in a terminal, the last column is cut to fit.

    `right` contains the numbers of the columns that are aligned to the right; the first column has the number 0.
    """
    texts = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(head), *texts]) for column in range(len(head))]
    remaining_width = _terminal_width() - sum(widths[:-1]) - len(GAP) * (len(head) - 1)
    widths[-1] = min(widths[-1], max(remaining_width, MIN_WIDTH))
    for line in [[name.upper() for name in head], *texts]:
        cells = [
            _fit(text, width, right=number in right)
            for number, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        click.echo(GAP.join(cells).rstrip())


def echo_json(value: object) -> None:
    """Print a value as JSON. Times are in ISO 8601; other types that JSON lacks are printed as text."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_to_json))


def event_as_json(event: OutboxEvent, *fields: str) -> dict[str, Any]:
    """Return these columns of the event, or all of them if none is named. A job has its own words beside them."""
    columns = {name: getattr(event, name) for name in fields or list(OutboxEvent._meta.sorted_field_names)}
    if event.kind != JOB:
        return columns
    words = {"actor": event.event_type, "queue": event.aggregate_type, "message_id": event.aggregate_id}
    return columns | words | {"idempotency_key": shown_key(event.idempotency_key)}


def to_the_second(moment: datetime | None) -> str:
    """Return a time in UTC, without fractions of a second; "" for None."""
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")


def one_line(text: object) -> str:
    """Return the text without control characters. Those in an event could move the cursor or change colours."""
    return printable(str(text), " ")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return to_the_second(value) if isinstance(value, datetime) else one_line(value)


def _fit(text: str, width: int, *, right: bool) -> str:
    text = shorten(text, width)
    return text.rjust(width) if right else text.ljust(width)


def _terminal_width() -> int:
    """Return the terminal's width, or no limit if the output is not a terminal: programs need the whole text."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _to_json(value: object) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)
