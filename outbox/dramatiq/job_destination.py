"""Deliver jobs: enqueue each stored message on the broker of its actor, many in one round trip.

A job is delivered when the broker has its message. From then on Dramatiq's own retries apply to it. After a crash the
message may be enqueued twice, with the same message id. An in-process broker keeps messages in memory: there a job is
delivered when its actor has run (`job_completion.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import chain, count
from weakref import WeakKeyDictionary

import dramatiq
import dramatiq.broker

from outbox.current_outbox import loaded_settings
from outbox.destinations.limits import Limits
from outbox.destinations.outcome import Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.dramatiq.broker import find_broker
from outbox.dramatiq.broker_kind import describe_broker
from outbox.dramatiq.broker_origin import is_applications_own
from outbox.dramatiq.enqueue import enqueue_all
from outbox.dramatiq.in_process_broker import InProcessBroker
from outbox.dramatiq.job import BrokerRole, broker_of, message_of
from outbox.dramatiq.known_brokers import broker_of_actor
from outbox.errors import describe
from outbox.events.event import Event

# The name of the destination that is Dramatiq's global broker, as metrics and errors show it.
NAME = "dramatiq"


class JobRouter:
    """Finds the broker for a job.

    1. If the actor is declared in this process, its broker.
    2. Otherwise, if the message was sent through the global broker of its sender, and the global broker of this process
       is the same one: that broker. Enqueueing needs no actor, and an outbox worker may run beside Dramatiq workers of
       the application, without the modules of their actors.
    3. Otherwise none: on another broker, the message would be lost. The job waits for a worker that has its broker. (If
       the application has made its broker itself, a worker that has not imported the application's modules has another
       broker, the one that the settings name.)
    """

    def __init__(self) -> None:
        self._destinations: WeakKeyDictionary[dramatiq.Broker, JobDestination] = WeakKeyDictionary()

    def destination_for(self, event: Event) -> JobDestination | None:
        """Return the destination for the job's broker, or None if this process does not know that broker."""
        role, description = broker_of(event)
        broker = broker_of_actor(event.event_type, description if role is BrokerRole.OTHER else None)
        if broker is None and role is not BrokerRole.OTHER:
            found = find_broker(loaded_settings())
            is_same = is_applications_own(found) and describe_broker(found) == description
            broker = found if role is BrokerRole.SETTINGS or is_same else None
        return None if broker is None else self._destination(broker)

    def _destination(self, broker: dramatiq.Broker) -> JobDestination:
        is_global = broker is dramatiq.broker.global_broker
        found = self._destinations.get(broker)
        if found is None or (found.name == NAME) != is_global:
            name = NAME if is_global else self._unique(f"{NAME}:{getattr(broker, 'namespace', type(broker).__name__)}")
            found = self._destinations[broker] = JobDestination(broker, name)
        return found

    def _unique(self, name: str) -> str:
        """Return a name that no other broker's destination has: destinations with one name would share their jobs."""
        taken = {each.name for each in self._destinations.values()}
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        return next(each for each in names if each not in taken)


class JobDestination:
    """One broker as the destination of jobs. No event pattern selects it."""

    events: Sequence[str] = ()
    # How long a job waits at most after the broker was unavailable. The usual backoff grows to an hour, and jobs would
    # wait that long although the broker is back.
    longest_wait = timedelta(minutes=1)
    # How many jobs it may have under way: enough for the threads of a worker.
    at_once = 100

    def __init__(self, broker: dramatiq.Broker, name: str) -> None:
        self.name = name
        self.limits = Limits()
        self._broker = broker

    def __repr__(self) -> str:
        return f"<JobDestination {self.name!r}>"

    def deliver(self, events: Iterable[Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        """Enqueue the message of each job; yield each job with its outcome."""
        if isinstance(self._broker, InProcessBroker) and self._broker.completion.can_wait:
            yield from self._broker.completion.deliver(self._broker, iter(events), lease)
        else:
            yield from self._enqueue_all(events)

    def _enqueue_all(self, events: Iterable[Event]) -> Iterator[tuple[Event, Outcome]]:
        with_message, messages = [], []
        for event in list(events):
            try:
                messages.append(message_of(event))
            except Exception as error:  # an error in one job must not stop the others
                yield event, Retry(describe(error))
            else:
                with_message.append(event)
        yield from zip(with_message, enqueue_all(self._broker, messages, are_stored=True), strict=True)
