"""Complete names of destinations, event types and actors in the shell, from the database."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import click

from outbox.admin import queries
from outbox.core import Outbox
from outbox.current_outbox import current

# A shell that waits longer for a completion seems to hang.
SECONDS = 1.0

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _completing(names: Callable[[Outbox], Iterable[str]]) -> Complete:
    """Return a function for click that offers the names which begin with what was typed; none after an error."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        found: list[str] = []
        with contextlib.suppress(Exception):  # whatever it is, it must not be printed into the command line
            box = current()
            with box.dialect.bounded(SECONDS):
                found = [name for name in names(box) if name.startswith(incomplete) and name.isprintable()]
        return found

    return complete


destinations = _completing(lambda box: queries.destination_names(box.dialect, box.registry))
event_types = _completing(lambda box: queries.event_types(box.dialect))
actors = _completing(lambda box: queries.actors(box.dialect))
