"""Runs of periodic jobs: each scheduled time is stored once, and what is stored is run."""

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import dramatiq
import dramatiq.broker
import pytest
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox.core import Outbox
from outbox.operations import periodic_jobs
from outbox.operations.periodic_jobs import PAUSE, RESUME, RUN_NOW
from outbox.scheduler.store_runs import MISSED, NOT_ENDED, StoreRuns
from outbox.storage.models import DELIVERED, FAILED, JOB, PENDING, OutboxEvent
from outbox.storage.operator_models import Periodic
from outbox.telemetry.audit import Operator
from tests.support.periodic import (
    change_job,
    declare,
    declared,
    done,
    let_job_age,
    runs,
    scheduled_times,
    scheduler,
    whole_hour,
)
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import let_pass

HOUR = timedelta(hours=1)


def operate(box: Outbox, action: periodic_jobs.PeriodicAction) -> str:
    return periodic_jobs.apply(box.dialect, action, "job", operator=Operator("someone"))


def delete_ended(box: Outbox) -> None:
    """The clean-up comes, and deletes whatever has ended."""
    let_pass(seconds=1)
    box.cleanup_delivered_events(0)


class TestOnce:
    def test_a_new_job_has_no_run_for_the_past(self, box: Outbox) -> None:
        declare()
        tick = scheduler(box)
        tick()
        tick()
        assert runs(box) == []
        job = declared(box)
        assert (job.kind, job.schedule, job.words, job.timezone) == ("function", "hours=1", "every hour", "UTC")
        assert job.next_run_at == whole_hour(job.declared_at) + HOUR
        assert (job.last_scheduled_at, job.last_run_at, job.paused) == (None, None, False)

    def test_a_time_that_has_come_is_one_run_however_often_schedulers_look(self, box: Outbox) -> None:
        declare()
        first, second = scheduler(box), scheduler(box)
        first()
        let_job_age(box, hours=1)
        for tick in (first, second, first, scheduler(box)):
            tick()
        (time,) = scheduled_times(box)
        job = declared(box)
        assert (job.last_scheduled_at, job.last_run_at, job.last_run_id) == (time, time, runs(box)[0].id)
        assert job.next_run_at == time + HOUR

    def test_a_time_is_not_run_again_after_clean_up_has_deleted_its_run(self, box: Outbox) -> None:
        declare()
        scheduler(box)()
        let_job_age(box, hours=1)
        scheduler(box)()
        box.process_pending_events()
        delete_ended(box)
        assert runs(box) == []
        change_job(box, next_run_at=None)
        scheduler(box)()
        assert runs(box) == []

    def test_of_two_schedulers_that_have_read_the_same_one_stores(self, box: Outbox) -> None:
        declare()
        scheduler(box)()
        let_job_age(box, hours=1)
        slow, fast = scheduler(box), scheduler(box)
        slow()  # declares
        let_job_age(box, hours=1)
        fast()
        OutboxEvent.delete().execute()
        let_job_age(box, hours=1)
        recorded = slow._recorded.read()["job"]
        fast()
        (run,) = runs(box)
        OutboxEvent.delete().execute()  # the row of the run is not what prevents a second one
        slow._look_at(box.registry.periodic["job"], recorded)
        assert runs(box) == []
        assert declared(box).last_run_id == run.id

    def test_with_schedulers_in_many_threads_each_time_is_one_run(self, box: Outbox) -> None:
        declare(minutes=1, catch_up="all")
        scheduler(box)()
        let_job_age(box, minutes=50)
        barrier = threading.Barrier(4)
        schedulers = [scheduler(box) for _ in range(4)]
        stored = []

        def work(tick: StoreRuns) -> None:
            for _ in range(5):
                barrier.wait(PATIENCE_SECONDS)
                with box.dialect.connection():
                    tick()

        with ThreadPoolExecutor(4) as executor:
            for result in [executor.submit(work, tick) for tick in schedulers]:
                result.result()
        stored = scheduled_times(box)
        assert len(stored) in (49, 50, 51)
        assert stored == sorted(set(stored))

    def test_the_run_and_the_last_time_are_stored_together_or_not_at_all(
        self, box: Outbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        declare()
        tick = scheduler(box)
        tick()
        let_job_age(box, hours=1)
        before = declared(box)

        def fail(*_: Any, **__: Any) -> None:
            raise ValueError("no")

        with monkeypatch.context() as patched:
            patched.setattr(box.emitter, "store", fail)
            with pytest.raises(AssertionError):
                tick()
        assert declared(box).last_scheduled_at == before.last_scheduled_at
        tick()
        assert len(runs(box)) == 1

    def test_the_databases_clock_decides_not_the_hosts(self, box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
        declare()
        scheduler(box)()
        monkeypatch.setattr("time.time", lambda: 4e9)
        scheduler(box)()
        assert runs(box) == []


class TestMissedTimes:
    @pytest.mark.parametrize(("catch_up", "number"), [("latest", 1), ("all", 5), ("none", 0)])
    def test_are_caught_up_with_as_declared(self, box: Outbox, catch_up: str, number: int) -> None:
        declare(days=1, catch_up=catch_up)
        scheduler(box)()
        let_job_age(box, days=5)
        change_job(box, next_run_at=None)
        scheduler(box)()
        found = scheduled_times(box)
        job = declared(box)
        assert len(found) == number
        assert found == sorted(found)
        assert job.last_scheduled_at is not None
        assert job.next_run_at == job.last_scheduled_at + timedelta(days=1)
        if catch_up == "latest":
            assert (found[0], job.skipped_at) == (job.last_scheduled_at, job.last_scheduled_at - timedelta(days=1))
        if catch_up == "none":
            assert (job.skipped_at, job.skipped_why) == (job.last_scheduled_at, MISSED)
        scheduler(box)()
        assert len(runs(box)) == number

    def test_a_changed_schedule_applies_from_now_on(self, box: Outbox) -> None:
        declare(days=1)
        scheduler(box)()
        let_job_age(box, days=3)
        box.registry.clear()
        declare(hours=1)
        scheduler(box)()
        assert runs(box) == []
        job = declared(box)
        assert job.schedule == "hours=1"
        assert job.next_run_at == whole_hour(job.seen_at) + HOUR


class TestPauseAndResume:
    def test_a_paused_job_is_not_run_and_the_times_of_the_pause_are_not_caught_up_with(self, box: Outbox) -> None:
        declare(catch_up="all")
        scheduler(box)()
        operate(box, PAUSE)
        let_job_age(box, hours=5)
        scheduler(box)()
        assert runs(box) == []
        operate(box, RESUME)
        scheduler(box)()
        assert runs(box) == []
        let_job_age(box, hours=1)
        scheduler(box)()
        assert len(runs(box)) == 1

    def test_a_job_that_is_paused_after_it_was_read_is_not_run(self, box: Outbox) -> None:
        declare()
        tick = scheduler(box)
        tick()
        let_job_age(box, hours=1)
        recorded = tick._recorded.read()["job"]
        operate(box, PAUSE)
        tick._look_at(box.registry.periodic["job"], recorded)
        assert runs(box) == []


class TestRunNow:
    def test_is_one_run_and_does_not_move_the_schedule(self, box: Outbox) -> None:
        function = declare()
        first, second = scheduler(box), scheduler(box)
        first()
        second()
        before = declared(box)
        operate(box, RUN_NOW)
        assert "already" in operate(box, RUN_NOW)
        recorded = second._recorded.read()["job"]
        first()
        box.process_pending_events()
        OutboxEvent.delete().execute()  # the row of the run is not what prevents a second one
        second._look_at(box.registry.periodic["job"], recorded)
        assert runs(box) == []
        job = declared(box)
        assert (job.last_scheduled_at, job.next_run_at) == (before.last_scheduled_at, before.next_run_at)
        assert job.requested_at is None
        (run,) = done(function)
        assert (run.by_hand, run.scheduled_at) == (True, recorded.requested_at)

    def test_runs_a_paused_job(self, box: Outbox) -> None:
        declare()
        tick = scheduler(box)
        tick()
        operate(box, PAUSE)
        operate(box, RUN_NOW)
        tick()
        assert len(runs(box)) == 1


class TestOverlap:
    def test_skip_leaves_out_a_run_while_the_one_before_it_has_not_ended(self, box: Outbox) -> None:
        declare(overlap="skip")
        tick = scheduler(box)
        tick()
        for _ in range(2):
            let_job_age(box, hours=1)
            tick()
        assert len(runs(box)) == 1
        job = declared(box)
        assert (job.skipped_at, job.skipped_why) == (job.last_scheduled_at, NOT_ENDED)
        box.process_pending_events()
        let_job_age(box, hours=1)
        tick()
        assert len(runs(box)) == 2

    def test_skip_leaves_out_a_run_by_hand_as_well(self, box: Outbox) -> None:
        declare(overlap="skip")
        tick = scheduler(box)
        tick()
        for _ in range(2):
            operate(box, RUN_NOW)
            tick()
        assert len(runs(box)) == 1
        assert declared(box).requested_at is None

    def test_skip_stores_one_of_several_missed_runs(self, box: Outbox) -> None:
        declare(overlap="skip", catch_up="all")
        scheduler(box)()
        let_job_age(box, hours=5)
        scheduler(box)()
        assert scheduled_times(box) == [declared(box).last_scheduled_at]

    def test_allow_stores_a_run_whatever_the_one_before_it_does(self, box: Outbox) -> None:
        declare()
        tick = scheduler(box)
        tick()
        for _ in range(2):
            let_job_age(box, hours=1)
            tick()
        assert len(runs(box)) == 2

    def test_skip_does_not_wait_for_a_run_that_was_deleted(self, box: Outbox) -> None:
        declare(overlap="skip")
        tick = scheduler(box)
        tick()
        let_job_age(box, hours=1)
        tick()
        OutboxEvent.delete().execute()
        let_job_age(box, hours=1)
        tick()
        assert len(runs(box)) == 1


class TestFunctions:
    def test_are_called_with_the_run(self, box: Outbox) -> None:
        function = declare()
        scheduler(box)()
        let_job_age(box, hours=1)
        scheduler(box)()
        box.process_pending_events()
        (run,), (row,) = done(function), runs(box)
        assert run == outbox.Run("job", row.id, declared(box).last_run_at, 1, box.settings.max_attempts, False)
        assert row.status == DELIVERED

    def test_are_retried_as_handlers_are_and_what_happened_is_recorded(self, box: Outbox) -> None:
        attempts: list[int] = []

        @outbox.periodic(hours=1, name="job", max_attempts=2)
        def job(run: outbox.Run) -> None:
            attempts.append(run.attempt)
            raise ValueError("no rates today")

        tick = scheduler(box)
        tick()
        operate(box, RUN_NOW)
        tick()
        box.process_pending_events()
        assert runs(box)[0].status == PENDING
        let_pass(hours=1)
        box.process_pending_events()
        (row,) = runs(box)
        assert (row.status, attempts) == (FAILED, [1, 2])
        assert row.error_message == "periodic:job: ValueError: no rates today"
        recorded = declared(box)
        assert (recorded.ended_id, recorded.ended_error) == (row.id, "ValueError: no rates today")
        assert recorded.ended_seconds is not None

    def test_of_another_process_are_left_to_it(self, box: Outbox) -> None:
        declare()
        tick = scheduler(box)
        tick()
        operate(box, RUN_NOW)
        tick()
        other = Outbox(box.settings, database=box.database)
        other.is_worker = True
        other.process_pending_events()
        (row,) = runs(box)
        assert (row.status, row.attempts) == (PENDING, 0)
        let_pass(hours=1)
        box.process_pending_events()
        assert runs(box)[0].status == DELIVERED

    def test_are_no_events_that_a_pattern_matches(self, box: Outbox) -> None:
        events: list[outbox.Event] = []
        outbox.handler("*", name="all")(events.append)
        outbox.handler("job", name="same name")(events.append)
        function = declare()
        tick = scheduler(box)
        tick()
        operate(box, RUN_NOW)
        tick()
        box.process_pending_events()
        assert (len(done(function)), events) == (1, [])

    def test_let_a_worker_start_that_has_nothing_else(self, box: Outbox) -> None:
        with pytest.raises(outbox.OutboxError, match="no handler is registered"):
            box.become_worker()
        declare()
        box.become_worker()
        assert box.is_worker


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubBroker]:
    """The application's own broker."""
    broker = StubBroker()
    broker.emit_after("process_boot")
    monkeypatch.setattr(dramatiq.broker, "global_broker", broker)
    yield broker
    broker.close()


class TestActors:
    def test_are_enqueued_on_their_broker_once_for_each_time(self, box: Outbox, broker: StubBroker) -> None:
        @outbox.periodic(hours=1)
        @dramatiq.actor(queue_name="reports")
        def job() -> None: ...

        first, second = scheduler(box), scheduler(box)
        first()
        let_job_age(box, hours=1)
        for tick in (first, second, first):
            tick()
        rows = list(OutboxEvent.select())
        assert [row.kind for row in rows] == [JOB]
        assert declared(box).kind == "actor"
        assert declared(box).last_run_id == rows[0].id
        assert broker.queues["reports"].qsize() == 0
        box.process_pending_events()
        (data,) = list(broker.queues["reports"].queue)
        message = dramatiq.Message.decode(data)
        assert (message.actor_name, message.args, message.message_id) == ("job", (), str(rows[0].id))

    def test_are_run_by_hand_without_the_schedule_moving(self, box: Outbox, broker: StubBroker) -> None:
        @outbox.periodic(hours=1)
        @dramatiq.actor
        def job() -> None: ...

        tick = scheduler(box)
        tick()
        operate(box, RUN_NOW)
        tick()
        tick()
        box.process_pending_events()
        assert broker.queues["default"].qsize() == 1
        assert declared(box).last_scheduled_at is None


class TestTwoSchedules:
    """Two schedulers have declared the same job differently, as while a new version is deployed."""

    def redeclare(self, box: Outbox) -> tuple[StoreRuns, StoreRuns]:
        declare(minutes=1)
        old = scheduler(box)
        old()
        box.registry.clear()
        declare(hours=1)
        new = scheduler(box)
        new()
        return old, new

    def test_the_one_that_was_started_later_has_the_job(self, box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
        old, new = self.redeclare(box)
        let_job_age(box, minutes=2)
        change_job(box, seen_at=declared(box).seen_at - timedelta(seconds=50))
        for tick in (old, old):
            tick()
        assert runs(box) == []
        new()
        assert declared(box).schedule == "hours=1"
        assert [time for time in scheduled_times(box) if time != whole_hour(time)] == []
        assert sum("has declared it with the schedule hours=1" in record.getMessage() for record in caplog.records) == 1

    def test_the_other_takes_over_when_it_is_gone(self, box: Outbox) -> None:
        old, _ = self.redeclare(box)
        change_job(box, seen_at=declared(box).seen_at - timedelta(minutes=2))
        old()
        assert declared(box).schedule == "minutes=1"


class TestForgetting:
    @pytest.mark.parametrize(("days", "is_kept"), [(89, True), (91, False)])
    def test_the_clean_up_deletes_a_job_that_no_scheduler_has_had_for_long(
        self, box: Outbox, days: int, is_kept: bool
    ) -> None:
        declare()
        scheduler(box)()
        change_job(box, seen_at=declared(box).seen_at - timedelta(days=days))
        box.delete_old_records()
        assert len(list(Periodic.select().execute(box.database))) == int(is_kept)


class TestErrors:
    def test_of_one_job_are_a_line_and_do_not_affect_the_others(
        self, box: Outbox, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        declare(name="a")
        declare(name="b")
        tick = StoreRuns(box, box.registry.periodic)
        tick()
        for name in ("a", "b"):
            let_job_age(box, name, hours=1)
        store = tick._store_unless_overlapping

        def fail(job: Any, *args: Any, **kwargs: Any) -> None:
            if job.name == "a":
                raise ValueError("no\nsuch thing")
            store(job, *args, **kwargs)

        monkeypatch.setattr(tick, "_store_unless_overlapping", fail)
        for _ in range(3):
            tick()
        assert len(runs(box, "b")) == 1
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        (line,) = lines
        assert line.startswith(
            "Could not store a run of the periodic job a: no such thing. The next try is in a second"
        )

    def test_of_the_database_are_a_line_and_the_next_tick_tries_again(
        self, box: Outbox, caplog: pytest.LogCaptureFixture
    ) -> None:
        declare()
        tick = StoreRuns(box, box.registry.periodic)
        box.database.execute_sql("ALTER TABLE outbox_periodic RENAME TO away")
        tick()
        tick()
        assert len(caplog.records) == 1
        assert "Could not store the runs of periodic jobs: The outbox has no tables" in caplog.records[0].getMessage()
        box.database.execute_sql("ALTER TABLE away RENAME TO outbox_periodic")
        tick()
        assert declared(box).name == "job"

    def test_a_job_that_was_forgotten_is_declared_again(self, box: Outbox) -> None:
        declare()
        tick = scheduler(box)
        tick()
        box.database.execute_sql("DELETE FROM outbox_periodic")
        tick()
        tick()
        assert declared(box).next_run_at is not None

    def test_a_running_scheduler_keeps_its_jobs_seen_but_not_with_every_tick(self, box: Outbox) -> None:
        declare()
        for refresh_seconds, is_seen_again in ((3_600.0, False), (0.0, True)):
            tick = StoreRuns(box, box.registry.periodic, refresh_seconds=refresh_seconds)
            tick()
            old = declared(box).seen_at - HOUR
            change_job(box, seen_at=old)
            tick()
            assert (declared(box).seen_at > old) == is_seen_again
