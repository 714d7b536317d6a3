"""`outbox prove`: call handlers again, twice at the same time, and killed, on copies of the database."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from outbox.application_modules import import_modules
from outbox.cli.options import json_option
from outbox.cli.output import echo_json
from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.destinations.handler import Handler
from outbox.errors import NothingRegistered
from outbox.testing.proof.event_fields import events_of_file
from outbox.testing.proof.proof import AS_IT_IS, Proof, Variant

if TYPE_CHECKING:  # they import dramatiq, which other commands do without
    from outbox.testing.proof.prove_handler import Prover
    from outbox.testing.proof.samples import Events

# The exit code if a handler is not safe, or could not be proved.
NOT_SAFE = 1


@click.command(short_help="Prove that handlers are safe to repeat and to kill.")
@click.argument("modules", metavar="MODULE...", nargs=-1, required=True)
@click.option("--handler", "names", metavar="NAME", multiple=True, help="Only this handler; may be repeated.")
@click.option(
    "--event",
    "files",
    metavar="FILE",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Try the events of this JSON file; may be repeated.",
)
@click.option(
    "--most-events",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Try each handler with at most this many events.",
)
@click.option("--allow-calls", is_flag=True, help="Let handlers call hosts and programs, many times.")
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=30.0, show_default=True, help="How long one call may take."
)
@click.option(
    "--most-statements",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Kill a handler after at most this many of its statements.",
)
@click.option(
    "--most-megabytes", type=click.IntRange(1), default=100, show_default=True, help="Copy no larger database."
)
@json_option
def prove(
    modules: tuple[str, ...],
    names: tuple[str, ...],
    files: tuple[str, ...],
    most_events: int,
    as_json: bool,
    **limits: Any,
) -> None:
    """Prove that the handlers of MODULE are safe, on throw-away copies of the database. The original is only read.

    Each handler is called twice in a row, twice at the same time, and killed after each of its statements and called
    again; the tables are compared with those after one call. The events are those of --event and of functions with
    @outbox.testing.sample, otherwise the newest of each type in the table. The exit code is 1 if a handler is not safe,
    or could not be proved.
    """
    import_modules(modules)
    box = current()
    box.check_schema()
    handlers = _handlers(box, names, modules)
    from outbox.testing.proof.prove_handler import prover
    from outbox.testing.proof.samples import events_for

    given = [event for name in files for event in events_of_file(Path(name).read_text(), name)]
    proofs: list[Proof] = []
    with _ended_by_sigterm(), prover(box, **limits) as proving:
        events = events_for(proving, given, seconds=limits["seconds"])
        for handler in handlers:
            for proof in _proofs(proving, handler, events, most_events):
                proofs.append(proof)
                if not as_json:
                    click.echo(str(proof))
    others = [each.name for each in box.registry.destinations.values() if not isinstance(each, Handler)]
    if as_json:
        echo_json({"proofs": [each.as_json() for each in proofs], "not_handlers": others})
    else:
        _summarise(proofs, others)
    sys.exit(0 if all(each.is_safe for each in proofs) else NOT_SAFE)


def _handlers(box: Outbox, names: tuple[str, ...], modules: tuple[str, ...]) -> list[Handler]:
    if names:
        from outbox.testing.proof.prove_handler import handler_of

        return [handler_of(box, name) for name in names]
    found = [each for each in box.registry.destinations.values() if isinstance(each, Handler)]
    if not found:
        raise NothingRegistered(modules)
    return found


def _proofs(proving: Prover, handler: Handler, events: Events, most: int) -> Iterator[Proof]:
    found = events.of(handler, most)
    for source, event in found:
        proof = proving.prove(handler, event)
        proof.event = f"{proof.event} ({source})"
        yield proof
    if not found:
        problem = (
            f"there is no event for it ({', '.join(handler.events)}): neither recorded, nor of a declared class. Pass "
            "--event FILE, or write a function with @outbox.testing.sample"
        )
        yield Proof(handler.name, "no event", [Variant(AS_IT_IS, problem=problem)])


def _summarise(proofs: list[Proof], others: list[str]) -> None:
    safe = len({each.handler for each in proofs}) - len({each.handler for each in proofs if not each.is_safe})
    click.echo(f"{safe} of {len({each.handler for each in proofs})} handlers are safe.")
    if others:
        click.echo(f"Not proved, because they act outside the database: {', '.join(others)}.")


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Inside the block, treat SIGTERM like Ctrl-C, so that the copies are dropped."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
