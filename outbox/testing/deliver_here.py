"""Deliver the events that are due in the test's thread, through the real claim, dispatch and settle.

Inside the test's transaction the statements are the same as in a worker; only the commits between them are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.delivery.batch import Batch
from outbox.delivery.context import DeliveryContext
from outbox.delivery.deliver import deliver_batch
from outbox.delivery.followers import release_all_overlooked
from outbox.destinations.outcome import Delivered, Outcome, exception_of
from outbox.errors import RegistrationError, Unavailable
from outbox.events.event import Event
from outbox.testing.delivery_context import context_of_test
from outbox.testing.errors import NotAccepted, NotFinished
from outbox.testing.rolled_back import kept_open

# A call gives up after this many batches: handlers that emit events that they handle themselves would never end.
MOST_BATCHES = 1_000

# A destination's name, or the function of a handler.
Named = str | Callable[..., object]


@dataclass
class Delivering:
    """The results of one call of `deliver`."""

    delivered: int = 0
    # What each destination did not accept, by the event's id and the destination's name: the latest outcome.
    refusals: dict[tuple[str, str], tuple[Event, Outcome]] = field(default_factory=dict)

    def note(self, event: Event, name: str, outcome: Outcome) -> None:
        """Note the outcome of one event at one destination."""
        if isinstance(outcome, Delivered):
            self.refusals.pop((event.row_id, name), None)
        else:
            self.refusals[event.row_id, name] = event, outcome

    def raise_first(self) -> None:
        """Raise the error of the first destination that did not accept an event; notes on it name the others."""
        refused = [(event, name, outcome) for (_, name), (event, outcome) in self.refusals.items()]
        if not refused:
            return
        (event, name, outcome), *others = refused
        error = outcome if isinstance(outcome, Unavailable) and outcome.__traceback__ else exception_of(outcome)
        if error is None:
            error = NotAccepted(f"{name} did not accept {event!r}: {getattr(outcome, 'error', outcome)}")
        else:
            error.add_note(f"Raised by {name} for {event!r}, attempt {event.attempt}.")
        for event, name, outcome in others:
            error.add_note(f"Also: {name} did not accept {event!r}: {getattr(outcome, 'error', outcome)}")
        raise error


def deliver(*, only: Named | Iterable[Named] | None = None, raise_errors: bool = True) -> int:
    """Deliver all due events, and those that handlers emit; return how many events and jobs were delivered.

    It works inside the test's own transaction. Each event is tried once; its retry is due later: see `advance`.

    - `only`: a destination's name, or the function of a handler, or several: the others get nothing, and events stay
      due for them.
    - `raise_errors`: raise what a handler has raised, after its outcome is written.
    """
    box = current()
    done = Delivering()
    deliver_due(box, done, names_of(box, only), raise_errors=raise_errors)
    return done.delivered


def deliver_due(box: Outbox, done: Delivering, only: Collection[str] | None, *, raise_errors: bool) -> None:
    """Deliver batch after batch, until every event that is due was tried."""
    tried: set[str] = set()
    with kept_open(box.database), box.dialect.connection():
        context = context_of_test(box, only, done.note)
        for _ in range(MOST_BATCHES):
            batch = _next_batch(context, tried)
            if batch is None:
                return
            tried |= {event.row_id for event in batch.events}
            done.delivered += batch.counts().get("delivered", 0)
            if raise_errors:
                done.raise_first()
    raise NotFinished(
        f"{MOST_BATCHES} batches were delivered, and there are still new events: probably a handler emits events that "
        "it handles itself."
    )


def names_of(box: Outbox, named: Named | Iterable[Named] | None) -> Collection[str] | None:
    """Return the names of these destinations, which may be given as the functions of handlers."""
    if named is None:
        return None
    return {name for each in _each(named) for name in destination_names(box, each)}


def destination_names(box: Outbox, named: Named) -> list[str]:
    """Return the names of the destination with this name, or of the handlers with this function."""
    destinations = box.registry.destinations
    found = [name for name, each in destinations.items() if name == named or getattr(each, "function", None) is named]
    if not found:
        shown = named if isinstance(named, str) else getattr(named, "__qualname__", repr(named))
        known = ", ".join(destinations) or "there is none"
        raise RegistrationError(f"No destination here is called {shown!r}, and it is no handler's function ({known}).")
    return found


def _each(named: Named | Iterable[Named]) -> Iterable[Named]:
    return (named,) if isinstance(named, str) or callable(named) else named


def _next_batch(context: DeliveryContext, tried: Collection[str]) -> Batch | None:
    """Deliver a batch of events that were not tried yet; return None if there is none."""
    if _is_untried_due(context, tried) or (release_all_overlooked(context) and _is_untried_due(context, tried)):
        with _hidden(context, tried):
            return deliver_batch(context, context.settings.batch_size)
    return None


@contextmanager
def _hidden(context: DeliveryContext, tried: Collection[str]) -> Iterator[None]:
    """Keep a claim from taking events that were tried, and may be due again, while the block runs."""
    if not tried:
        yield
        return
    dialect, ids = context.dialect, context.dialect.row_ids([*tried])
    dialect.run(dialect.statements.hide, (ids,))
    try:
        yield
    finally:
        dialect.run(dialect.statements.show, (ids,))


def _is_untried_due(context: DeliveryContext, tried: Collection[str]) -> bool:
    return any(id not in tried for (id,) in context.dialect.run(context.dialect.statements.due_ids).fetchall())
