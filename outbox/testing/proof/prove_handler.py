"""Prove handlers: `outbox.testing.prove`, and what `outbox prove` calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.destinations.async_handler import AsyncHandler
from outbox.destinations.handler import Handler
from outbox.errors import RegistrationError
from outbox.events.event import Event
from outbox.storage.models import OutboxEvent
from outbox.testing.deliver_here import Named, destination_names
from outbox.testing.proof.call_work import is_in_inbox, quiet_outbox, with_inbox, without_inbox
from outbox.testing.proof.copies import Copies, bases
from outbox.testing.proof.database_copy import Tables
from outbox.testing.proof.errors import NotSafe
from outbox.testing.proof.event_fields import event_of_row
from outbox.testing.proof.proof import AS_IT_IS, WITH_INBOX, WITHOUT_INBOX, Proof, Variant
from outbox.testing.proof.scenarios import CallLimits, Scenarios


class Prover:
    """Proves handlers of one outbox, on copies of its databases."""

    def __init__(self, box: Outbox, base: Copies, limits: CallLimits) -> None:
        # The outbox for the processes of the calls, and the copies from which each scenario gets copies of its own.
        self.box, self.base = quiet_outbox(box), base
        self._limits = limits
        self._before: Tables | None = None

    def prove(self, handler: Handler, event: Event) -> Proof:
        """Try the handler as it is; then, if that can give another result, with the inbox or without it."""
        if self._before is None:
            self._before = self.base.read()
        own = self._try(AS_IT_IS, handler, event)
        variants = [own]
        if is_in_inbox(handler):
            name, other = WITHOUT_INBOX, without_inbox(handler)
        else:
            name, other = WITH_INBOX, None if own.is_safe else with_inbox(handler)
        if own.problem is None and other is not None:
            variants.append(self._try(name, other, event))
        return Proof(handler.name, repr(event), variants)

    def _try(self, name: str, handler: Handler, event: Event) -> Variant:
        assert self._before is not None  # noqa: S101  (for the type checker)
        scenarios = Scenarios(handler, event, box=self.box, base=self.base, before=self._before, limits=self._limits)
        return scenarios.try_all(name)


@contextmanager
def prover(
    box: Outbox, *, allow_calls: bool, seconds: float, most_statements: int, most_megabytes: int
) -> Iterator[Prover]:
    """Yield a prover; drop its copies at the end."""
    with bases(box, most_megabytes) as base:
        yield Prover(box, base, CallLimits(seconds, most_statements, allow_calls))


def prove(
    handler: Named | Handler,
    event: Event[Any] | OutboxEvent,
    *,
    raise_errors: bool = True,
    allow_calls: bool = False,
    seconds: float = 30.0,
    most_statements: int = 50,
    most_megabytes: int = 100,
) -> Proof:
    """Call a handler twice, twice at the same time, and killed after each of its statements; compare the tables.

    Every call runs in a process of its own, on a copy of the outbox's database, which is dropped at the end.

    - `handler`: its function, registered or not, or its name.
    - `event`: the event to call it with: from `make_event`, or one that was emitted.
    - `raise_errors`: raise NotSafe, whose text is the report, unless the handler is safe.
    - `allow_calls`: let it call hosts and programs. By default such a call raises an error in the handler.
    - `seconds`: how long one call may take.
    - `most_statements`: after how many of its statements it is killed.
    - `most_megabytes`: how large the database may be.
    """
    box = current()
    limits = {"seconds": seconds, "most_statements": most_statements, "most_megabytes": most_megabytes}
    given = event if isinstance(event, Event) else event_of_row(box, event)
    with prover(box, allow_calls=allow_calls, **limits) as proving:  # type: ignore[arg-type]  # they are int, or float
        proof = proving.prove(handler_of(box, handler), given)
    if raise_errors and not proof.is_safe:
        raise NotSafe(proof)
    return proof


def handler_of(box: Outbox, named: Named | Handler) -> Handler:
    """Return the handler with this name or function; a function that is not registered becomes one."""
    if isinstance(named, Handler):
        return named
    registered = box.registry.destinations
    if not isinstance(named, str) and all(getattr(each, "function", None) is not named for each in registered.values()):
        return _unregistered(named)
    found = registered[destination_names(box, named)[0]]
    if not isinstance(found, Handler):
        raise RegistrationError(f"{found.name!r} is not a handler: what it does outside the database can't be proved.")
    return found


def _unregistered(function: Callable[..., Any]) -> Handler:
    kind = AsyncHandler if inspect.iscoroutinefunction(function) else Handler
    return kind(function, ["*"])
