"""Print tables for people, and JSON for programs.

Tables are printed to a terminal or to a pipe. In a terminal, only the last column is cut to fit the width, so that ids
stay complete and can be copied. In a pipe nothing is cut or coloured: each row is one line, for grep and awk.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import click

from outbox.admin.blocked_keys import BlockedKey
from outbox.events.job_row import shown_key
from outbox.storage.models import JOB, OutboxEvent
from outbox.storage.status import is_parked
from outbox.text import printable, shorten, visible_json

GAP = "  "
# The last column is never cut to less than this.
MIN_WIDTH = 12


class Cell(NamedTuple):
    """The text of a cell, with a colour for terminals."""

    text: str
    colour: str | None = None


def echo_table(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Sequence[int] = (),
    shrink: Mapping[int, int] = MappingProxyType({}),
) -> None:
    """Print a table. Each column is as wide as its content; in a terminal, the last column is cut to fit.

    `right` contains the numbers of the columns that are aligned to the right; the first column has the number 0.
    `shrink` contains columns that are cut before the last one is, each with its least width.
    """
    cells = [[each if isinstance(each, Cell) else Cell(_text(each)) for each in row] for row in rows]
    titles = [Cell(name.upper()) for name in head]
    widths = [max(len(line[column].text) for line in [titles, *cells]) for column in range(len(head))]
    room = _terminal_width() - len(GAP) * (len(head) - 1)
    for column, least in shrink.items():
        too_wide = sum(widths) - room
        widths[column] -= max(0, min(too_wide, widths[column] - least))
    widths[-1] = min(widths[-1], max(room - sum(widths[:-1]), MIN_WIDTH))
    for line in [titles, *cells]:
        texts = [
            _fit(cell, width, right=number in right)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        click.echo(GAP.join(texts).rstrip())


def echo_json(value: object) -> None:
    """Print a value as JSON. Times are in ISO 8601; other types that JSON lacks are printed as text.

    Characters that are not printable are escaped, so that they don't reach a terminal.
    """
    click.echo(visible_json(json.dumps(value, indent=2, ensure_ascii=False, default=as_json_value)))


def event_as_json(event: OutboxEvent, *fields: str) -> dict[str, Any]:
    """Return these columns of the event, or all of them if none is named. A job has its own words beside them.

    An event that waits behind others has no due time. (In the column it has one, far in the future.)
    """
    columns = {name: getattr(event, name) for name in fields or list(OutboxEvent._meta.sorted_field_names)}
    if "next_attempt_at" in columns and is_parked(event):
        columns["next_attempt_at"] = None
    if event.kind != JOB:
        return columns
    words = {"actor": event.event_type, "queue": event.aggregate_type, "message_id": event.aggregate_id}
    return columns | words | {"idempotency_key": shown_key(event.idempotency_key)}


def wait_as_json(blocked: BlockedKey) -> dict[str, Any]:
    """Return where events of a key wait, behind which event, and since when."""
    return {
        "destination": blocked.destination,
        "since": blocked.since,
        "behind": None if blocked.head is None else blocked.head.id,
    }


def to_the_second(moment: datetime | None) -> str:
    """Return a time in UTC, without fractions of a second; "" for None."""
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")


def one_line(text: object) -> str:
    """Return the text without control characters. Those in an event could move the cursor or change colours."""
    return printable(str(text), " ")


def _text(value: object) -> str:
    if value is None:
        return ""
    return to_the_second(value) if isinstance(value, datetime) else one_line(value)


def _fit(cell: Cell, width: int, *, right: bool) -> str:
    text = shorten(cell.text, width)
    text = text.rjust(width) if right else text.ljust(width)
    return text if cell.colour is None else click.style(text, fg=cell.colour)


def is_terminal() -> bool:
    """Return whether the output is a terminal, where a person reads it."""
    return sys.stdout.isatty()


def _terminal_width() -> int:
    """Return the terminal's width, or no limit if the output is not a terminal: programs need the whole text."""
    return shutil.get_terminal_size().columns if is_terminal() else sys.maxsize


def as_json_value(value: object) -> Any:
    """Return a value in a form that JSON has: a time in ISO 8601, any other as text."""
    return value.isoformat() if isinstance(value, datetime) else str(value)
