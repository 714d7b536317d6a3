"""`outbox export`: print the events that match filters, a JSON object on each line."""

from __future__ import annotations

import gzip
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from outbox.admin import queries
from outbox.cli.content import Content, masked_content
from outbox.cli.operator import operator
from outbox.cli.options import filter_options, modules_option
from outbox.cli.output import as_json_value, event_as_json
from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.operations.count import Count
from outbox.operations.filters import Filter
from outbox.storage.models import EVENT, OutboxEvent
from outbox.telemetry import audit
from outbox.text import visible_json

PAGE = 500
# The name of the action in the audit log.
EXPORT_UNMASKED = "export unmasked"


@click.command(short_help="Print events as lines of JSON.")
@filter_options
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file instead; compressed if its name ends in .gz.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Export at most N events.")
@click.option("--unmasked", is_flag=True, help="Export masked values, too; the audit log records who has done that.")
@modules_option
def export(filter: Filter, output: Path | None, limit: int | None, unmasked: bool) -> None:
    """Print all events, or those that match all filters, newest first: one JSON object on each line. Nothing changes.

    The values of keys in OUTBOX_MASKED_KEYS, such as passwords, are replaced by •••. Payloads that are encrypted are
    decrypted if this process has the key.
    """
    box = current()
    box.check_schema()
    number = 0
    given = {"output": None if output is None else str(output), "limit": limit}
    parameters = {name: value for name, value in given.items() if value is not None}
    with (
        _writing(output) as file,
        box.dialect.connection(),
        # Without the entry, nothing is exported unmasked.
        audit.record(
            box.dialect, operator() if unmasked else None, EXPORT_UNMASKED, filter.to_json(), parameters
        ) as entry,
    ):
        for events in _pages(box, filter, limit):
            with box.dialect.lock_limit():
                entry.add([each.id for each in events])
            contents = [_content(box, each, unmasked=unmasked) for each in events]
            for event, content in zip(events, contents, strict=True):
                values = event_as_json(event) | content._asdict()
                line = json.dumps(values, ensure_ascii=False, default=as_json_value)
                file.write(visible_json(line) + "\n")
                number += 1
    if output is not None:
        click.echo(f"{Count(number).of(EVENT)} exported to {output}.", err=True)


def _pages(box: Outbox, filter: Filter, limit: int | None) -> Iterator[list[OutboxEvent]]:
    """Yield the events, some at a time, each with all columns; no transaction stays open in between."""
    after, left = None, limit
    while left is None or left > 0:
        page = queries.page(box.dialect, filter, after=after, size=PAGE if left is None else min(PAGE, left))
        if page.events:
            yield queries.readable_rows(box.dialect, [each.id for each in page.events], box.cipher)
        left = None if left is None else left - len(page.events)
        after = page.after
        if after is None:
            return


def _content(box: Outbox, event: OutboxEvent, *, unmasked: bool) -> Content:
    return Content(event.payload, event.headers) if unmasked else masked_content(box, event)


@contextmanager
def _writing(output: Path | None) -> Iterator[IO[Any]]:
    """Open the file, which its owner only may read, or the standard output."""
    if output is None:
        yield sys.stdout
        return
    with open(output, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as raw:
        if stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
            os.fchmod(raw.fileno(), 0o600)  # a file that was there before keeps its mode otherwise
        if output.suffix == ".gz":
            with gzip.open(raw, "wt", encoding="utf-8") as file:
                yield file
            return
        with open(raw.fileno(), "w", encoding="utf-8", closefd=False) as file:
            yield file
