"""A state machine for order per key: several workers, what else can happen to events, and each step in between others.

It has no model of the table. It checks each call of a destination: whether the destination has every earlier event of
the key, or may go on without it. At the end everything is healthy, and all that is left must come to its end.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

import outbox
from outbox import crash_points
from outbox.core import Outbox
from outbox.delivery.batch import Batch
from outbox.delivery.claim import claim
from outbox.delivery.dispatch import dispatch
from outbox.delivery.followers import release_all_overlooked, release_overlooked
from outbox.delivery.partial_progress import write_partial_progress
from outbox.delivery.scan_position import ScanPosition
from outbox.delivery.settle import close
from outbox.destinations.controls import EVERYTHING
from outbox.destinations.outcome import Delivered, Failed, Outcome, Retry
from outbox.operations import controls
from outbox.operations.actions import DELETE, REPLAY, RETRY, RETRY_NOW, SKIP, Action, fail_with
from outbox.operations.erase import erase
from outbox.operations.filters import Filter
from outbox.storage.models import DELIVERED, FAILED, HOLDS, WAITS, OutboxEvent
from outbox.storage.timestamp import LATEST
from tests.operations.changing import change_all
from tests.support.controls import ALICE, nobody_is_notified
from tests.support.table import let_pass

OUTCOMES: dict[str, Outcome] = {
    "delivered": Delivered(),
    "retry": Retry("refused"),
    "unavailable": outbox.Unavailable("away"),
    "failed": Failed("never"),
}
outcomes = st.sampled_from([*OUTCOMES, "delivered", "delivered", "delivered"])
ONE, TWO = "order.one", "order.two"


@dataclass(frozen=True)
class Emitted:
    """An event, as its emitter knows it."""

    seq: int
    key: str | None
    event_type: str
    # Until then it lets later events pass.
    passes_until: int


class Crash(BaseException):
    """The worker process dies."""


@dataclass
class Scripted:
    """A destination that has the outcomes it was told to have, and tells the machine of every event that it gets."""

    name: str
    lineage: str
    events: tuple[str, ...]
    tell: Callable[["Scripted", outbox.Event, str], None]
    meanwhile: Callable[[], None]
    ordered: bool = True
    on_failed: str = "block"
    is_pipeline: bool = False
    replaces: tuple[str, ...] = ()
    takes: int = 100
    script: dict[UUID, str] = field(default_factory=dict)
    limits: Any = field(default_factory=lambda: outbox.Limits(open_after=None))

    def deliver(self, events: Iterable[outbox.Event], _: outbox.Lease) -> Iterator[tuple[outbox.Event, Outcome]]:
        self.meanwhile()
        for taken, event in enumerate(list(events) if self.is_pipeline else events, 1):
            outcome = self.script.get(event.id, "delivered")
            self.tell(self, event, outcome)
            yield event, OUTCOMES[outcome]
            if taken == self.takes and not self.is_pipeline:
                return


class OrderMachine(RuleBasedStateMachine):
    """`box` is the emitter, the operator and the first worker."""

    batches = Bundle("batches")

    def __init__(self, box: Outbox) -> None:
        super().__init__()
        self.box = box
        for table in ("outbox_event", "outbox_waiting", "outbox_destination"):
            box.dialect.run(f"DELETE FROM {table}")  # noqa: S608
        box.registry.clear()
        self.now = 0
        self.workers: list[Outbox] = []
        # The last two lack a destination that the others have.
        for names in ("ABCU", "ABCU", "ABU", "CU"):
            self._start(box if not self.workers else None, [self._destination(name) for name in names])
        self.events: dict[UUID, Emitted] = {}
        # What each destination has, and has failed at; what it need not have, because an operator has said so or
        # because the destination came later.
        self.has: dict[str, set[UUID]] = defaultdict(set)
        self.failed_at: dict[str, set[UUID]] = defaultdict(set)
        self.excused: dict[str, set[UUID]] = defaultdict(set)
        self.wrong: list[str] = []
        # The batches that were claimed, and those that are being sent, the innermost last.
        self.held: list[tuple[Outbox, Batch]] = []
        self.sending: list[tuple[Outbox, Batch]] = []
        # What operators have paused.
        self.paused: set[str] = set()
        self.next_key = 0
        # What else happens between the plan of a batch and its end, and at which of these moments.
        self.interruption: Callable[[], None] | None = None
        self.interrupts_at = 0
        self.crashes_at: int | None = None
        self._point = crash_points.point
        crash_points.point = self._at_point

    def _start(self, box: Outbox | None, destinations: list[Scripted]) -> Outbox:
        worker = box if box is not None else Outbox(self.box.settings, database=self.box.database)
        for destination in destinations:
            worker.registry.add(destination)
        scan_position = ScanPosition(clock=lambda: self.now * 60.0)
        worker.delivery = replace(worker.delivery, scan_position=scan_position, uses_threads=False)
        worker.become_worker()
        worker.recorder.keep_current()
        self.workers.append(worker)
        return worker

    def _destination(self, name: str, lineage: str | None = None, **fields: Any) -> Scripted:
        kind = name if lineage is None else lineage
        return Scripted(
            name,
            kind,
            {"C": (ONE,), "U": (TWO,)}.get(kind, ("order.*",)),
            self._got,
            self._meanwhile,
            ordered=kind != "U",
            on_failed="skip" if kind == "B" else "block",
            is_pipeline=kind == "B",
            **fields,
        )

    def teardown(self) -> None:
        try:
            for name in sorted(self.paused):
                self.resume(name)
            self._all_comes_to_its_end()
        finally:
            crash_points.point = self._point

    # What the application does

    @initialize(count=st.integers(2, 6))
    def emit_some(self, count: int) -> None:
        for _ in range(count):
            self.emit("k", ONE, 3, 0, hold=False)

    @rule(
        key=st.sampled_from(["k", "k", "k", "l", None]),
        event_type=st.sampled_from([ONE, TWO]),
        max_attempts=st.integers(1, 3),
        delay=st.sampled_from([0, 0, 0, 30]),
        hold=st.booleans(),
    )
    def emit(self, key: str | None, event_type: str, max_attempts: int, delay: int, *, hold: bool) -> None:
        self.next_key += 1
        self._emit(f"id-{self.next_key}", key, event_type, max_attempts, delay, hold=hold)

    def _emit(
        self, id_key: str, key: str | None, event_type: str, max_attempts: int, delay: int, *, hold: bool
    ) -> None:
        holds = hold and bool(delay) and key is not None
        stored = self.box.emit(
            "Order",
            id_key,
            event_type,
            ordering_key=key,
            idempotency_key=id_key,
            max_attempts=max_attempts,
            deliver_after=timedelta(minutes=delay) if delay else None,
            hold=holds,
            on_duplicate="replace",
        )
        passes_until = self.now + delay if delay and not holds else 0
        self.events[stored.id] = Emitted(stored.seq, key, event_type, passes_until)

    @rule(which=st.integers(0, 7), key=st.sampled_from(["k", "k", "l", None]), delay=st.sampled_from([0, 30]))
    def replace(self, which: int, key: str | None, delay: int) -> None:
        """Emit an event again: it takes the place of the one before if that was not tried, else it is a new one."""
        if which < len(self.events):
            row = OutboxEvent.get_or_none(OutboxEvent.id == list(self.events)[which])
            if row is not None and not row.idempotency_key.startswith("replaced:"):
                same_key = row.ordering_key  # with another key it keeps its number, which may be too small there
                self._emit(row.idempotency_key, same_key, row.event_type, 3, delay, hold=key is None)

    @rule(which=st.integers(0, 7))
    def cancel(self, which: int) -> None:
        if which < len(self.events):
            self.box.cancel(list(self.events)[which])

    # What workers do

    @rule(
        target=batches,
        who=st.integers(0, 3),
        size=st.integers(1, 5),
        include_expired=st.sampled_from([True, True, False]),
    )
    def claim(self, who: int, size: int, include_expired: bool) -> Any:
        worker = self.workers[who]
        worker.recorder.keep_current()
        batch = claim(worker.delivery, size, include_expired_leases=include_expired)
        if batch is None:
            return multiple()
        self.held.append((worker, batch))
        return batch

    @rule(target=batches, who=st.integers(0, 3), size=st.integers(1, 5))
    def take_over(self, who: int, size: int) -> Any:
        self.let_pass(17)
        return self.claim(who, size, include_expired=True)

    @rule(
        batch=consumes(batches),
        takes=st.sampled_from([1, 2, 100, 100]),
        crashes_at=st.sampled_from([None, None, None, 0, 1, 2, 3]),
        interruption=st.sampled_from(
            [None, "send", "send", "emit", "retry", "skip", "fail", "delete", "cancel", "claim", "erase", "write"]
        ),
        interrupts_at=st.integers(0, 4),
        data=st.data(),
    )
    def send(
        self,
        *,
        batch: Batch,
        takes: int,
        crashes_at: int | None,
        interruption: str | None,
        interrupts_at: int,
        data: st.DataObject,
    ) -> None:
        """Dispatch and settle a batch. Something else may happen in between, and the worker may die at any moment."""
        other = next((each for each in self.held if each[1] is not batch), None)
        match interruption:
            case "send" if other is not None:
                self.interruption = lambda: self._send(other[1], 100, data)
            case "emit":
                self.interruption = lambda: self.emit("k", ONE, 3, 0, hold=False)
            case "retry" | "skip" | "fail" | "delete" | "erase":
                self.interruption = lambda: self.operate(interruption, data.draw(st.integers(0, 5)))
            case "cancel":
                self.interruption = lambda: self.cancel(data.draw(st.integers(0, 5)))
            case "claim":
                self.interruption = lambda: self._claim_and_send(data)
            case "write":
                self.interruption = lambda: self._write_partial_progress(batch)
        self.interrupts_at, self.crashes_at = interrupts_at, crashes_at
        try:
            self._send(batch, takes, data)
        finally:
            self.interruption = self.crashes_at = None

    def _claim_and_send(self, data: st.DataObject) -> None:
        batch = self.claim(data.draw(st.integers(0, 3)), 5, include_expired=False)
        if isinstance(batch, Batch):
            self._send(batch, 100, data)

    def _write_partial_progress(self, batch: Batch) -> None:
        """As a worker does while one of its destinations takes long."""
        worker = next((worker for worker, each in self.sending if each is batch), None)
        if worker is not None and not batch.writing.locked():
            write_partial_progress(worker.delivery, batch)

    def _send(self, batch: Batch, takes: int, data: st.DataObject) -> None:
        worker = next((worker for worker, each in self.held if each is batch), None)
        if worker is None:
            return  # an interruption has sent it already
        self.held = [each for each in self.held if each[1] is not batch]
        self.sending.append((worker, batch))
        for name, destination in worker.registry.destinations.items():
            assert isinstance(destination, Scripted)
            destination.takes = takes
            destination.script |= {
                event.id: data.draw(outcomes, label=f"{name} {event.aggregate_id}") for event in batch.events
            }
        try:
            dispatch(worker.delivery, batch)
            close(worker.delivery, batch)
        except Crash:
            batch.take_unbegun()  # no thread of it goes on
        finally:
            self.sending.pop()

    def _at_point(self, name: str) -> None:
        """Before and after outcomes are written, the worker may die, and other things may happen."""
        if self.crashes_at is not None and name in (crash_points.BEFORE_SETTLE, crash_points.AFTER_SETTLE):
            self.crashes_at -= 1
            if self.crashes_at < 0:
                self.crashes_at = None
                raise Crash
        if name != crash_points.AFTER_SEND:  # a destination is asked for the next event
            self._meanwhile()

    def _meanwhile(self) -> None:
        """Let something else happen, once, and with no crash."""
        self.interrupts_at -= 1
        if self.interruption is not None and self.interrupts_at < 0:
            interruption, self.interruption = self.interruption, None
            crashes_at, self.crashes_at = self.crashes_at, None
            interruption()
            self.crashes_at = crashes_at

    def _got(self, destination: Scripted, event: outbox.Event, outcome: str) -> None:
        """A destination has got an event: note what is wrong with that."""
        lineage, mine = destination.lineage, self.events[event.id]
        if mine.key is not None and destination.ordered and event.id not in self.has[lineage]:
            for id, earlier in self.events.items():
                if earlier.key == mine.key and earlier.seq < mine.seq and not self._may_pass(destination, id, earlier):
                    self.wrong.append(f"{destination.name} got {mine} before {earlier}")
        if outcome == "delivered":
            self.has[lineage].add(event.id)
        elif outcome == "failed":
            self.failed_at[lineage].add(event.id)

    def _may_pass(self, destination: Scripted, id: UUID, earlier: Emitted) -> bool:
        """Return whether the destination may get later events of the key, as far as this earlier one is concerned."""
        lineage = destination.lineage
        if id in self.has[lineage] or id in self.excused[lineage] or earlier.passes_until > self.now:
            return True
        if lineage == "C" and earlier.event_type != ONE:
            return True
        row = OutboxEvent.get_or_none(OutboxEvent.id == id)
        if row is None or row.ordering_key != earlier.key:
            return True
        entry = (row.progress or {}).get(destination.name, {})
        has_failed = id in self.failed_at[lineage] or FAILED in (row.status, entry.get("state"))
        return has_failed and destination.on_failed == "skip"

    @rule(who=st.integers(0, 3))
    def look_for_overlooked(self, who: int) -> None:
        release_overlooked(self.workers[who].delivery)

    # What operators do, and what changes in the deployment

    @rule(
        what=st.sampled_from(["retry", "retry now", "skip", "fail", "replay", "delete", "erase", "clean up"]),
        which=st.none() | st.integers(0, 7),
    )
    def operate(self, what: str, which: int | None) -> None:
        if what == "clean up":
            self.let_pass(25 * 60)
            self.box.cleanup_delivered_events(20)
            return
        if what == "erase":
            self._erase(list(self.events) if which is None else list(self.events)[which : which + 1])
            return
        actions: dict[str, Action] = {
            "retry": RETRY, "retry now": RETRY_NOW, "skip": SKIP, "fail": fail_with("tired"), "replay": REPLAY,
            "delete": DELETE,
        }  # fmt: skip
        emitted = list(self.events)
        ids = emitted if which is None else emitted[which : which + 1]
        before = {row.id: (row.status, row.order_state) for row in OutboxEvent.select()}
        change_all(self.box, actions[what], Filter(ids=tuple(ids)))
        self._excuse_where_skipped(ids)
        for id in ids:
            status, order_state = before.get(id, (None, None))
            if (what == "skip" and status == FAILED and order_state is not None) or (
                what == "replay" and status == DELIVERED
            ):
                self._excuse(id)
            elif what == "retry" and status == FAILED and OutboxEvent.get_by_id(id).status != FAILED:
                for excused in (self.excused, self.failed_at):
                    for found in excused.values():
                        found.discard(id)

    def _erase(self, ids: Iterable[UUID]) -> None:
        """Erase what these events hold. Those that have not ended are dropped: they fail, and hold nothing back."""
        for id in ids:
            row = OutboxEvent.get_or_none(OutboxEvent.id == id)
            if row is None:
                continue
            which = Filter(aggregate_type=row.aggregate_type, aggregate_id=row.aggregate_id)
            notify = self.box.notifier.notify_after_commit
            list(erase(self.box.dialect, notify, which, operator=None, pending="drop"))
            for each in OutboxEvent.select().where(OutboxEvent.erased_at.is_null(False)):
                if each.order_state is None:
                    self._excuse(each.id)

    @rule(name=st.sampled_from(["A", "B", "C", "U", EVERYTHING]))
    def pause(self, name: str) -> None:
        self.paused.add(name)
        controls.pause(self.box.dialect, name, operator=ALICE, force=True)

    @rule(name=st.sampled_from(["A", "B", "C", "U", EVERYTHING]))
    def resume(self, name: str) -> None:
        if name in self.paused:
            self.paused.discard(name)
            controls.resume(self.box.dialect, nobody_is_notified, name, operator=ALICE)

    def _excuse_where_skipped(self, ids: Iterable[UUID]) -> None:
        """Take note of the destinations at which an event has failed and was skipped while others still try it."""
        for row in OutboxEvent.select().where(OutboxEvent.id.in_(list(ids))):
            for name, entry in (row.progress or {}).items():
                if entry.get("skipped"):
                    self.excused["C" if name == "C2" else name].add(row.id)

    def _excuse(self, id: UUID) -> None:
        for lineage in "ABCDU":
            self.excused[lineage].add(id)

    @rule(who=st.integers(0, 1), what=st.sampled_from(["new destination", "new name"]))
    def deploy(self, who: int, what: str) -> None:
        """Start a worker with one more destination, or with another name for one."""
        destinations = list(self.workers[who].registry.destinations.values())
        names = {each.name for each in destinations}
        old = next(each for each in destinations if isinstance(each, Scripted) and each.lineage == "C")
        if what == "new destination" and "D" not in names:
            # It never gets what had ended, or was being delivered, and what has no place in the order any more.
            for row in OutboxEvent.select():
                if row.next_attempt_at is None or row.lease_id is not None or row.order_state is None:
                    self.excused["D"].add(row.id)
            destinations.append(self._destination("D"))
        elif what == "new name" and old.name == "C":
            successor = self._destination("C2", "C", replaces=("C",))
            destinations = [successor if each is old else each for each in destinations]
        else:
            return
        worker = self._start(None, destinations)  # type: ignore[arg-type]
        self.workers.remove(worker)
        self.workers[who] = worker

    @rule(minutes=st.sampled_from([7, 17, 70]))
    def let_pass(self, minutes: int) -> None:
        self.now += minutes
        with self.box.database.atomic():
            let_pass(minutes=minutes)

    # What must be true at any time

    @invariant()
    def no_destination_got_an_event_too_early(self) -> None:
        assert self.wrong == []

    @invariant()
    def every_parked_event_can_be_found(self) -> None:
        rows = {row.id: row for row in OutboxEvent.select()}
        parked = {id for id, row in rows.items() if row.next_attempt_at == LATEST}
        waits = {id for id, row in rows.items() if row.order_state == WAITS and row.next_attempt_at is not None}
        # One that has failed at a destination holds back later events there, while it waits at another one.
        assert waits <= parked <= waits | {id for id, row in rows.items() if row.order_state == HOLDS and row.progress}
        assert parked <= {id for _, id in self._waiting()}

    @invariant()
    def events_without_a_key_are_not_affected(self) -> None:
        without = {row.id for row in OutboxEvent.select() if row.ordering_key is None}
        assert all(row.order_state is None for row in OutboxEvent.select() if row.id in without)

    def _waiting(self) -> list[tuple[str, UUID]]:
        rows = self.box.dialect.run("SELECT destination, event_id FROM outbox_waiting").fetchall()
        return [(name, id if isinstance(id, UUID) else UUID(id)) for name, id in rows]

    def _all_comes_to_its_end(self) -> None:
        """Nothing fails any more: all ends, but for what visibly waits behind a failed event, until that is retried."""
        self._until_nothing_is_due()
        assert self.wrong == []
        rows = {row.id: row for row in OutboxEvent.select()}
        failed = [row for row in rows.values() if row.status == FAILED and row.order_state is not None]
        for row in rows.values():
            if row.next_attempt_at is not None:
                assert row.next_attempt_at == LATEST
                assert any(each.ordering_key == row.ordering_key and each.seq < row.seq for each in failed)
        for _ in self.events:  # one that waited at one destination may have failed at another before
            has_failed = (OutboxEvent.status == FAILED) & OutboxEvent.erased_at.is_null()
            if not OutboxEvent.select().where(has_failed).exists() and not self._waiting():
                break
            self.operate("retry", None)
            for row in OutboxEvent.select().where(OutboxEvent.erased_at.is_null(False)):  # it can't be retried
                change_all(self.box, SKIP, Filter(ids=(row.id,)))
                self._excuse(row.id)
            self._until_nothing_is_due()
            assert self.wrong == []
        assert {row.status for row in OutboxEvent.select().where(OutboxEvent.erased_at.is_null())} <= {DELIVERED}
        assert self._waiting() == []

    def _until_nothing_is_due(self) -> None:
        self.interruption = self.crashes_at = None
        idle = rounds = 0
        while idle < 2:
            idle += 1
            for worker in self.workers:
                self.let_pass(100)  # so that each gets what another one lacks a destination for
                release_all_overlooked(worker.delivery)
                while (batch := claim(worker.delivery, 50)) is not None:
                    idle = 0
                    rounds += 1
                    assert rounds < 1000, "events go round in circles"
                    for destination in worker.registry.destinations.values():
                        assert isinstance(destination, Scripted)
                        destination.takes, destination.script = 100, {}
                    dispatch(worker.delivery, batch)
                    close(worker.delivery, batch)
