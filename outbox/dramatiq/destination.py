"""A Dramatiq actor as a destination of events: to deliver an event, enqueue a message for the actor."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import dramatiq

from outbox.destinations.event_filter import check_event_filter
from outbox.destinations.limits import Limits
from outbox.destinations.order_policy import OnFailed, check_order_policy
from outbox.destinations.outcome import Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.dramatiq.enqueue import enqueue_all
from outbox.errors import RegistrationError, describe
from outbox.events.envelope import as_dict
from outbox.events.event import Event


class ActorDestination:
    """Sends each event to an actor, on the actor's own broker and queue. The only argument is the event's envelope.

    The event counts as delivered when its message is enqueued. From then on the broker stores it, and the actor's own
    retries apply. After a crash the actor may get an event twice, with the same `id`.

    - `actor`: the Dramatiq actor.
    - `events`: the patterns of event types that it gets; all by default.
    - `name`: the destination's name, stable across releases; by default `actor:` and the actor's name.
    - `replaces`: the names of the earlier destinations that this one replaces.
    - `concurrency`, `per_second`: the limits, as in `outbox.Limits`.
    - `ordered`: whether the messages of an ordering key are enqueued in order. Workers run them side by side.
    - `on_failed`: whether later events of an ordering key wait behind one that has failed: "block" or "skip".
    """

    def __init__(
        self,
        actor: dramatiq.Actor[Any, Any],
        *,
        events: Sequence[str] = ("*",),
        name: str | None = None,
        replaces: str | Sequence[str] = (),
        concurrency: int | None = None,
        per_second: float | None = None,
        ordered: bool = True,
        on_failed: OnFailed = "block",
    ) -> None:
        _check_actor(actor)
        self.actor = actor
        self.name = f"actor:{actor.actor_name}" if name is None else name
        self.limits = Limits(concurrency, per_second)
        self.events = check_event_filter(events)
        self.replaces = replaces
        check_order_policy(self.name, ordered, on_failed)
        self.ordered, self.on_failed = ordered, on_failed

    def __repr__(self) -> str:
        return f"<ActorDestination {self.name!r} to {self.actor.actor_name!r}>"

    def deliver(self, events: Iterable[Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        """Enqueue a message for each event; yield each event with its outcome."""
        batch = list(events)
        with_message, messages = [], []
        for event in batch:
            try:
                messages.append(self.actor.message(as_dict(event)))
            except Exception as error:  # an error in one event must not stop the others
                yield event, Retry(describe(error))
            else:
                with_message.append(event)
        yield from zip(with_message, enqueue_all(self.actor.broker, messages), strict=True)


def _check_actor(actor: object) -> None:
    if not isinstance(actor, dramatiq.Actor):
        raise RegistrationError(f"{actor!r} is not an actor: decorate the function with @dramatiq.actor.")
    try:
        inspect.signature(actor.fn).bind({})
    except TypeError:
        raise RegistrationError(
            f"The actor {actor.actor_name} can't be called with one argument. It gets one, the event's envelope: "
            f"def {actor.actor_name}(event)."
        ) from None
