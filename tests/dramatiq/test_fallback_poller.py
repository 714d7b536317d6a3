"""The poller claims only if nothing else makes the worker claim. It survives errors, and stops with its worker."""

import dataclasses
import signal
import threading
from typing import Any

import pytest
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox.core import Outbox
from outbox.destinations.recorded_destinations import REFRESH_SECONDS
from outbox.dramatiq.fallback_poller import FallbackPoller
from outbox.telemetry.process_reports import APPLICATION, UP, WORKER
from tests.conftest import Configure
from tests.support.processes import BIN, MakeStage, Stage
from tests.support.servers import PostgresServer, RedisServer

SWEEP_SECONDS = 10.0


class Clock:
    """The clock of the poller and of the drain limit, which the test sets."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def box(configure: Configure, clock: Clock) -> Outbox:
    box = configure(sweep_seconds=SWEEP_SECONDS, publish_seconds=10)
    box.delivery.drain_limit._clock = clock
    box.delivery.drain_limit.claim_started_at = clock.now
    outbox.ignore("*")
    return box


class Looking:
    """A poller that runs in the test's thread, and whose probe returns what the test sets."""

    def __init__(self, box: Outbox, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.box = box
        self.error: str | None = None
        self.asked = 0
        self.poller = FallbackPoller(box, StubBroker(), clock=clock)
        monkeypatch.setattr(self.poller._probe, "find_error", self._answer)

    def _answer(self) -> str | None:
        self.asked += 1
        return self.error

    def looks(self) -> bool:
        """Run one check; return whether the poller has claimed."""
        before = self.box.delivery.drain_limit.claims_started
        if self.poller._is_needed():
            self.poller._claim()
        return self.box.delivery.drain_limit.claims_started > before


@pytest.fixture
def looking(box: Outbox, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Looking:
    return Looking(box, clock, monkeypatch)


def test_a_worker_without_any_claim_refreshes_its_destinations_while_it_waits(
    box: Outbox, clock: Clock, looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that rarely gets a sweep still counts as running, so that events for its destinations wait for it."""
    refreshed: list[float] = []
    monkeypatch.setattr(box.recorder, "keep_current", lambda: refreshed.append(clock.now))
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        clock.now += seconds
        return False

    box = configured_with(box, sweep_seconds=600.0)
    looking.poller._box = box
    monkeypatch.setattr(looking.poller._stopped, "wait", wait)
    assert not looking.poller._wait_for_next_check()
    assert max(waited) <= REFRESH_SECONDS
    assert len(refreshed) >= 7


def configured_with(box: Outbox, **settings: Any) -> Outbox:
    box.settings = dataclasses.replace(box.settings, **settings)
    return box


def publish(box: Outbox, *kinds: str) -> None:
    for kind in kinds:
        other = Outbox(box.settings, database=box.database, registry=box.registry)
        other.reporter.kind = kind
        other.reporter.report_now()


class TestWithoutABroker:
    def test_it_claims_at_every_look(self, looking: Looking, box: Outbox) -> None:
        looking.error = "refused"
        assert [looking.looks() for _ in range(3)] == [True] * 3
        assert box.counters["polls"] == 3

    def test_it_ends_with_the_first_answer(self, looking: Looking) -> None:
        looking.error = "refused"
        assert looking.looks()
        looking.error = None
        assert not looking.looks()

    def test_it_is_logged_once_and_so_is_the_return(self, looking: Looking, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        for error in ("refused", "refused", None, None):
            looking.error = error
            looking.looks()
        said = [record.getMessage() for record in caplog.records if "broker" in record.getMessage()]
        assert said == [
            "The broker can't be reached: refused. This worker claims due events every 10 s until it can.",
            "The broker can be reached again.",
        ]


class TestWithABroker:
    def test_it_claims_nothing_and_asks_nobody_while_others_start_claims(
        self, looking: Looking, box: Outbox, clock: Clock
    ) -> None:
        for _ in range(10):
            box.drain()
            clock.now += 100 * SWEEP_SECONDS
            assert not looking.looks()
        assert looking.asked == 0

    def test_it_claims_once_after_missing_two_sweeps(self, looking: Looking, clock: Clock) -> None:
        clock.now += 2 * SWEEP_SECONDS - 0.1
        assert not looking.looks()
        clock.now += SWEEP_SECONDS + 0.2
        assert looking.looks()
        assert not looking.looks()

    def test_in_a_fleet_it_waits_as_many_times_longer_as_there_are_live_workers(
        self, looking: Looking, box: Outbox, clock: Clock
    ) -> None:
        publish(box, WORKER, WORKER, UP, APPLICATION)
        clock.now += 3 * 2 * SWEEP_SECONDS - 0.1
        assert not looking.looks()
        clock.now += 3 * SWEEP_SECONDS + 0.2
        assert looking.looks()

    def test_workers_that_have_fallen_silent_do_not_count(self, looking: Looking, box: Outbox, clock: Clock) -> None:
        publish(box, WORKER, WORKER, WORKER)
        box.dialect.run("UPDATE outbox_process SET seen_at = seen_at - interval '1 hour'")
        clock.now += 3 * SWEEP_SECONDS
        assert looking.looks()

    def test_where_workers_publish_nothing_it_counts_as_the_only_one(
        self, configure: Configure, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        box = configure(sweep_seconds=SWEEP_SECONDS, publish_seconds=0)
        outbox.ignore("*")
        publish(box, WORKER, WORKER)
        looking = Looking(box, clock, monkeypatch)
        box.delivery.drain_limit.claim_started_at = clock.now
        clock.now += 3 * SWEEP_SECONDS
        assert looking.looks()


def test_it_runs_no_sql_while_others_start_claims(
    looking: Looking, box: Outbox, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.drain()
    said: list[Any] = []
    monkeypatch.setattr(box.database, "execute_sql", lambda *arguments: said.append(arguments))
    clock.now += SWEEP_SECONDS
    assert not looking.looks()  # others have claimed
    assert not looking.looks()  # they have not, and it is early yet
    assert said == []


class TestTheDatabase:
    def test_an_outage_is_logged_once_and_survived(self, make_stage: MakeStage, own_redis: RedisServer) -> None:
        own_redis.kill()
        with PostgresServer() as server:
            stage = make_stage(redis_url=own_redis.url, database_url=server.create_database("outage"))
            worker = stage.worker()
            stage.emit(1)
            stage.wait_until_all("delivered")
            server.stop(immediate=True)
            stage.wait_for(lambda: "Could not claim due events" in worker.said(), "the worker notices")
            server.start()
            stage.reconnect()
            stage.wait_for(lambda: "Claiming due events works again" in worker.said(), "the worker goes on")
            stage.emit(3)
            stage.wait_until_all("delivered")
            assert worker.said().count("Could not claim due events") == 1


class TestItsProcess:
    def test_stops_when_told_to_and_finishes_what_it_has_begun(
        self, make_stage: MakeStage, own_redis: RedisServer
    ) -> None:
        own_redis.kill()
        stage = make_stage(redis_url=own_redis.url)
        worker = stage.worker()
        gate = stage.gate()
        events = stage.emit(1, do="wait", gate=str(gate))
        stage.wait_until_begun(*events)
        worker.signal(signal.SIGTERM)
        gate.touch()
        assert worker.wait() == 0
        assert stage.ended() == events
        assert stage.statuses() == {"delivered": 1}

    def test_is_a_worker_and_none_that_only_emits(self, stage: Stage) -> None:
        stage.run_python(
            """
            import threading, outbox, jobs
            with outbox.current().dialect.connection():
                outbox.emit("Thing", 1, "test.emitted")
            outbox.current().notifier.flush()
            assert not [thread for thread in threading.enumerate() if "poller" in thread.name]
            """,
        )

    def test_has_no_more_than_so_many_drains_with_a_broker_of_its_own_and_forgets_no_wake_up(
        self, make_stage: MakeStage
    ) -> None:
        """Sixteen threads. While the drains that may run are held after their claims, the others return at once."""
        stage = make_stage(sweep_seconds=3600, drains=2)
        gate = stage.gate()
        stage.environment["OUTBOX_TEST_GATE"] = str(gate)
        modules = ("tests.apps.own_broker", "jobs", "tests.apps.ledger")
        stage.start("worker", BIN / "dramatiq", *modules, "-p", "1", "-t", "16", ready="ready for action")
        for _ in range(12):
            stage.wake()
        stage.wait_for(lambda: len(stage.entries("drained")) >= 10, "all but two drains are refused")
        refused = len(stage.entries("drained"))
        events = stage.emit(3)
        for number in range(10):
            stage.wake()
            stage.wait_for(
                lambda number=number: len(stage.entries("drained")) > refused + number,  # type: ignore[misc]
                "a drain is refused, and its thread is free",
            )
        assert len(stage.entries("claimed")) == 2
        gate.touch()
        stage.wait_until_all("delivered")
        assert sorted(stage.ended()) == sorted(events)


def test_its_thread_ends_when_it_is_stopped(box: Outbox) -> None:
    poller = FallbackPoller(box, StubBroker())
    poller.start()
    poller.stop()
    poller.join(60)
    assert not [thread for thread in threading.enumerate() if thread.name == "outbox-fallback-poller"]
