"""Tables for people, and JSON for programs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from outbox.storage.models import OutboxEvent
from outbox.text import printable, shorten

GAP = "  "
# A column is never cut to less than this.
NARROWEST = 12


def echo_table(head: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> None:
    """Columns as wide as they need to be; the last one is cut to what the terminal has left."""
    texts = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(head), *texts]) for column in range(len(head))]
    room = _terminal_width() - sum(widths[:-1]) - len(GAP) * (len(head) - 1)
    widths[-1] = min(widths[-1], max(room, NARROWEST))
    for line in [[name.upper() for name in head], *texts]:
        cells = [
            _fit(text, width, right=number in right)
            for number, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        click.echo(GAP.join(cells).rstrip())


def echo_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_plain))


def event_as_json(event: OutboxEvent, *fields: str) -> dict[str, Any]:
    """All of its columns, or some."""
    return {name: getattr(event, name) for name in fields or list(OutboxEvent._meta.sorted_field_names)}


def seconds(moment: datetime | None) -> str:
    """To the second, in UTC."""
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")


def one_line(text: object) -> str:
    """Nothing in it moves the cursor or changes the colour: what it says may come from anybody."""
    return printable(str(text), " ")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return seconds(value) if isinstance(value, datetime) else one_line(value)


def _fit(text: str, width: int, *, right: bool) -> str:
    text = shorten(text, width)
    return text.rjust(width) if right else text.ljust(width)


def _terminal_width() -> int:
    """Unlimited where nobody looks: what is cut can't be searched."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000


def _plain(value: object) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)
