"""A state machine that does to events what can be done to them, in any order, and compares the table with the model.

The application's transactions run on a connection of their own: on PostgreSQL the rest goes on while one is open. A
worker that is late behaves as one that was paused: it does not know that time has passed.
"""

import copy
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

import outbox
from outbox.core import Outbox
from outbox.delivery.batch import Batch
from outbox.delivery.claim import claim
from outbox.delivery.deliver import count_due
from outbox.delivery.dispatch import dispatch
from outbox.delivery.scan_position import ScanPosition
from outbox.delivery.settle import close, give_back
from outbox.destinations.outcome import Delivered, Failed, Outcome, Retry
from outbox.operations.actions import DELETE, REPLAY, RETRY, Action, fail_with
from outbox.operations.filters import Filter
from outbox.storage.models import DELIVERED, FAILED, OutboxEvent
from outbox.telemetry.audit import Operator
from tests.model.life import BACKOFF, LEASE, MAX_AGE, RETENTION, Life, Place
from tests.operations.changing import change_all, replay_to
from tests.support.table import _earlier, let_pass

SETTINGS = {
    "lease_seconds": LEASE * 60,
    "max_run_seconds": LEASE * 60,
    "backoff_base_seconds": BACKOFF * 60,
    "backoff_cap_seconds": BACKOFF * 60,
    "max_age_hours": MAX_AGE / 60,
}
# No sum of these comes near a lease, a backoff, the age or the retention: the time that the test itself takes, seconds
# at most, decides nothing.
STEPS = [7, 17, 25 * 60]

DESTINATIONS = {"solo": ["one"], "pair": ["one", "two"]}
OUTCOMES: dict[str, Outcome] = {
    "delivered": Delivered(),
    "retry": Retry("refused"),
    "unavailable": outbox.Unavailable("away"),
    "failed": Failed("never"),
}
# Most succeed, as in reality.
outcomes = st.sampled_from([*OUTCOMES, "delivered", "delivered"])


class Scripted:
    """A destination that takes so many events and returns the outcomes that it was told to."""

    limits = outbox.Limits(open_after=None)

    def __init__(self, name: str) -> None:
        self.name = name
        self.takes = 0
        self.outcomes: dict[UUID, str] = {}
        self.given: list[UUID] = []

    @property
    def events(self) -> tuple[str, ...]:
        return tuple(event_type for event_type, names in DESTINATIONS.items() if self.name in names)

    def deliver(self, events: Iterable[outbox.Event], _: outbox.Lease) -> Iterator[tuple[outbox.Event, Outcome]]:
        for event in events:
            self.given.append(event.id)
            yield event, OUTCOMES[self.outcomes[event.id]]
            if len(self.given) == self.takes:
                return


class Machine(RuleBasedStateMachine):
    """`box` is used by the workers and the operator, `application` by the emitter."""

    batches = Bundle("batches")

    def __init__(self, box: Outbox, application: Outbox) -> None:
        super().__init__()
        self.box, self.application = box, application
        self.destinations = {name: Scripted(name) for name in DESTINATIONS["pair"]}
        box.registry.clear()
        for destination in self.destinations.values():
            box.registry.add(destination)
        OutboxEvent.delete().execute()
        box.counters.reset()
        self.now = 0
        # A new scan position: that of the last run does not apply to this one.
        box.delivery = replace(box.delivery, scan_position=ScanPosition(clock=lambda: self.now * 60.0))
        self.fenced = 0
        self.lives: dict[UUID, Life] = {}
        self.keys: dict[UUID, tuple[str, str]] = {}
        self.emitted: list[UUID] = []
        self.held: list[Batch] = []
        # By lease and event: what a worker knows of an event that it claimed, and whether it knows that it lost it.
        self.seen: dict[tuple[UUID, UUID], Life] = {}
        self.lost: set[tuple[UUID, UUID]] = set()
        # The application's blocks, the outermost first: what each has emitted, and when that will be due.
        self.blocks: list[tuple[Any, dict[UUID, tuple[Life, int]]]] = []

    def teardown(self) -> None:
        while self.blocks:
            self._leave(ValueError())
        self.application.database.close()

    # SQLite has one writer: no other connection can write while the application's transaction is open.
    is_free = precondition(lambda self: not self.blocks or self.box.dialect.name == "postgres")

    # What the application does

    @initialize(events=st.lists(st.tuples(st.sampled_from(sorted(DESTINATIONS)), st.integers(1, 3)), max_size=3))
    def emit_some(self, events: list[tuple[str, int]]) -> None:
        """Emit some events to begin with."""
        for key, (event_type, max_attempts) in zip("xyz", events, strict=False):
            self.emit(event_type, key, max_attempts, 0)

    @rule(
        event_type=st.sampled_from(sorted(DESTINATIONS)),
        key=st.sampled_from("abc"),
        max_attempts=st.integers(1, 3),
        delay=st.sampled_from([0, 0, 30]),
    )
    def emit(self, event_type: str, key: str, max_attempts: int, delay: int) -> None:
        later = timedelta(minutes=delay)
        arguments: dict[str, Any] = {"idempotency_key": key, "max_attempts": max_attempts, "deliver_after": later}
        known = [*self.lives, *(id for _, lives in self.blocks for id in lives)]
        if (event_type, key) in {self.keys[id] for id in known}:
            with pytest.raises(outbox.DuplicateEvent):
                self.application.emit("Thing", 1, event_type, **arguments)
            return
        id = self.application.emit("Thing", 1, event_type, **arguments).id
        life = Life({name: Place() for name in DESTINATIONS[event_type]}, max_attempts, self.now + delay)
        self.keys[id] = (event_type, key)
        self.emitted.append(id)
        if self.blocks:
            self.blocks[-1][1][id] = (life, delay)
        else:
            self.lives[id] = life

    @rule(step=st.sampled_from(["begin", "commit", "commit", "roll back"]))
    def transact(self, step: str) -> None:
        """Begin a transaction or, inside one, a savepoint; or end the innermost of them."""
        if step == "begin" and len(self.blocks) < 3:
            block = self.application.database.atomic()
            block.__enter__()
            self.blocks.append((block, {}))
        elif step == "roll back" and self.blocks:
            self._leave(ValueError())
        elif step == "commit" and self.blocks:
            self._commit()

    def _commit(self) -> None:
        lives = self._leave(None)
        if self.blocks:
            self.blocks[-1][1].update(lives)
            return
        self.lives |= {id: life for id, (life, _) in lives.items()}
        for life, delay in lives.values():
            life.due = self.now + delay  # let_pass can't move the due time of an event that is not committed

    def _leave(self, error: Exception | None) -> dict[UUID, tuple[Life, int]]:
        block, lives = self.blocks.pop()
        block.__exit__(None if error is None else type(error), error, None)
        return lives

    # What workers do

    @rule(target=batches, size=st.integers(1, 6), include_expired_leases=st.sampled_from([True, True, False]))
    @is_free
    def claim(self, size: int, include_expired_leases: bool) -> Any:
        free = {id: life for id, life in self.lives.items() if life.may("claim", self.now)}
        fresh = {id for id, life in free.items() if life.lease is None}
        may_be = set(free) if include_expired_leases else fresh
        batch = claim(self.box.delivery, size, include_expired_leases=include_expired_leases)
        if batch is None:
            assert not may_be
            return multiple()
        found = {event.id for event in batch.events}
        if batch.from_expired_lease:
            assert len(found) == 1
            assert found <= may_be - fresh
        else:
            assert found <= fresh
            # An event from an expired lease may have to wait for the next claim, behind events that are due earlier.
            assert len(batch.events) == len(found) == min(size, len(fresh))
        for id in found:
            self.lives[id].claim(batch.lease_id, self.now)
            self.seen[batch.lease_id, id] = copy.deepcopy(self.lives[id])
        self.held.append(batch)
        return batch

    @rule(
        batch=consumes(batches), takes=st.integers(1, 9), asleep=st.sampled_from([False] * 3 + [True]), data=st.data()
    )
    @is_free
    def send(self, batch: Batch, takes: int, asleep: bool, data: st.DataObject) -> None:
        """Dispatch and settle the batch, and give back what was not taken; late, if time has passed."""
        if batch not in self.held:
            return
        if asleep:
            batch.valid_until = time.monotonic()  # its own clock tells it that the lease is over
        expected = {name: [] if asleep else self._awaits(batch, name) for name in self.destinations}
        for name, destination in self.destinations.items():
            destination.takes, destination.given = takes, []
            destination.outcomes = {
                event.id: data.draw(outcomes, label=f"{name}, {number}") for number, event in enumerate(batch.events)
            }
        dispatch(self.box.delivery, batch)
        close(self.box.delivery, batch)
        for name, destination in self.destinations.items():
            assert destination.given == expected[name][:takes]
        for event in batch.events:
            self._settle(batch, event)
        self.held.remove(batch)

    def _awaits(self, batch: Batch, name: str) -> list[UUID]:
        """Return the batch's events that the destination is to get now, without those that the worker knows as lost.

        A lost event that the worker does not know of is sent: a duplicate after a lost lease, whose outcome is fenced.
        """
        seen = {event.id: self.seen[batch.lease_id, event.id] for event in batch.events}
        return [
            id
            for id, life in seen.items()
            if (batch.lease_id, id) not in self.lost
            and not life.is_spent
            and life.places.get(name, Place(DELIVERED)).is_due(self.now)
        ]

    def _settle(self, batch: Batch, event: outbox.Event) -> None:
        life = self._held(batch, event)
        if life is None:
            seen = self.seen[batch.lease_id, event.id]
            self.fenced += (batch.lease_id, event.id) not in self.lost or seen.is_spent
            return
        given = {name: to for name, to in self.destinations.items() if event.id in to.given}
        life.settle({name: to.outcomes[event.id] for name, to in given.items()}, self.now)

    def _held(self, batch: Batch, event: outbox.Event) -> Life | None:
        """Return the event if the batch still holds its lease."""
        life = self.lives.get(event.id)
        return life if life is not None and life.lease == batch.lease_id else None

    @rule(batch=batches, step=st.sampled_from(["renew", "renew", "give back"]))
    @is_free
    def hold_or_let_go(self, batch: Batch, step: str) -> None:
        if batch not in self.held:
            return
        if step == "renew":
            self._renew(batch)
        else:
            self._give_back(batch)

    def _renew(self, batch: Batch) -> None:
        self.box.delivery.leases.renew([batch])
        for event in batch.events:
            life = self._held(batch, event)
            if life is not None:
                life.renew(self.now)
            else:
                self.lost.add((batch.lease_id, event.id))

    def _give_back(self, batch: Batch) -> None:
        give_back(self.box.delivery, batch)
        for event in batch.events:
            life = self._held(batch, event)
            if life is not None:
                life.give_back()
            else:
                self.fenced += (batch.lease_id, event.id) not in self.lost
        self.held.remove(batch)

    # What operators and the scheduler do

    @rule(
        what=st.sampled_from(
            ["retry", "fail", "replay", "replay to one", "delete", "clean up", "clean up a day later"]
        ),
        which=st.none() | st.integers(0, 5),
    )
    @is_free
    def operate(self, what: str, which: int | None) -> None:
        """Do something to all events, or to one of them, by the order in which they were emitted."""
        match what:
            case "retry":
                self._do(RETRY, which, "retry", lambda life: life.retry(self.now))
            case "fail":
                self._do(fail_with("tired"), which, "fail", lambda life: life.end(FAILED, self.now))
            case "replay" | "replay to one":
                to = "one" if what == "replay to one" else None
                action = REPLAY if to is None else replay_to(self.box, to)
                self._do(action, which, "replay", lambda life: life.replay(to, self.now))
            case "delete":
                self._do(DELETE, which, "delete", self._forget)
            case "clean up":
                self._clean_up()
            case "clean up a day later":
                self.let_pass(25 * 60)
                self._clean_up()

    def _clean_up(self) -> None:
        old = [life for life in self.lives.values() if life.may("clean up", self.now)]
        assert self.box.cleanup_delivered_events(RETENTION / 60) == {"deleted": len(old), "remaining": 0}
        for life in old:
            self._forget(life)

    def _do(self, action: Action, which: int | None, what: str, becomes: Callable[[Life], None]) -> None:
        ids = self.emitted if which is None else self.emitted[which : which + 1]
        meant = [self.lives[id] for id in ids if id in self.lives and self.lives[id].may(what, self.now)]
        done = change_all(self.box, action, Filter(ids=tuple(ids)), operator=Operator("operator"))
        assert done == len(meant)
        for life in meant:
            becomes(life)

    def _forget(self, life: Life) -> None:
        self.lives = {id: other for id, other in self.lives.items() if other is not life}

    @rule(target=batches, size=st.integers(1, 6))
    @is_free
    def take_over(self, size: int) -> Any:
        """Let time pass beyond all leases, and claim as another worker."""
        self.let_pass(17)
        return self.claim(size, include_expired_leases=True)

    @rule(target=batches, batch=consumes(batches), data=st.data())
    @is_free
    def come_back_late(self, batch: Batch, data: st.DataObject) -> Any:
        """Deliver as a worker that was paused past its lease, while another one took over."""
        taken_over = self.take_over(6)
        self.send(batch, takes=9, asleep=False, data=data)
        return taken_over

    @rule(target=batches, batch=batches)
    @is_free
    def renew_late(self, batch: Batch) -> Any:
        """Renew as a worker that was paused past its lease, while another one is at work."""
        taken_over = self.take_over(6)
        self.let_pass(7)
        self.hold_or_let_go(batch, "renew")
        return taken_over

    @rule(minutes=st.sampled_from(STEPS))
    @is_free
    def let_pass(self, minutes: int) -> None:
        """Move the timestamps of the rows, and those that workers have read from them, into the past."""
        self.now += minutes
        with self.box.database.atomic():
            let_pass(minutes=minutes)
        for event in (event for batch in self.held for event in batch.events):
            if event.has_progress:
                event._progress_text = json.dumps(_earlier(event.progress, timedelta(minutes=minutes)))
                event._progress = None

    # What must be true at any time

    @invariant()
    def the_table_is_as_expected(self) -> None:
        found = {row.id: row for row in OutboxEvent.select()}
        assert {id: self._summary(row) for id, row in found.items()} == {
            id: self._expected(life) for id, life in self.lives.items()
        }
        assert count_due(self.box.delivery) == sum(life.may("claim", self.now) for life in self.lives.values())
        assert self.box.counters["fenced"] == self.fenced

    def _expected(self, life: Life) -> tuple[Any, ...]:
        due = None if life.due is None else max(0, life.due - self.now)
        left = None if life.lease is None else max(0, life.lease_ends - self.now)
        return life.status, life.attempts, life.lease, due, left, life.status == DELIVERED

    def _summary(self, row: OutboxEvent) -> tuple[Any, ...]:
        due, left = self._minutes_until(row.next_attempt_at), self._minutes_until(row.lease_until)
        return row.status, row.attempts, row.lease_id, due, left, row.delivered_at is not None

    def _minutes_until(self, moment: datetime | None) -> int | None:
        return None if moment is None else max(0, round((moment - self._clock()) / timedelta(minutes=1)))

    def _clock(self) -> Any:
        return self.box.dialect.now()
