"""The timetable: what is done, how often, and what happens to a tick that is late, slow or fails."""

import logging
import threading
from datetime import UTC, timedelta
from typing import Any

import dramatiq
import dramatiq.broker
import pytest

from outbox.core import Outbox
from outbox.dramatiq import wakeup
from outbox.dramatiq.actor_names import CLEANUP, DELIVER
from outbox.dramatiq.in_process_broker import InProcessBroker
from outbox.scheduler.store_runs import StoreRuns
from outbox.scheduler.timetable import Tick, add_periodic_jobs, make_scheduler, timetable
from outbox.settings import Settings
from tests.support.periodic import declare
from tests.support.servers import wait_until


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> InProcessBroker:
    """The broker that ticks send to."""
    broker = InProcessBroker()
    broker.declare_queue("outbox")
    monkeypatch.setattr(dramatiq.broker, "global_broker", broker)
    return broker


def sent(broker: InProcessBroker) -> set[str]:
    """The actors that messages wait for."""
    return {dramatiq.Message.decode(data).actor_name for data in list(broker.queues["outbox"].queue)}


def test_it_says_what_is_done_and_how_often() -> None:
    ticks = timetable(Settings(sweep_seconds=7, cleanup_minutes=3))
    assert [(tick.name, tick.every) for tick in ticks] == [
        ("sweep", timedelta(seconds=7)),
        ("clean-up", timedelta(minutes=3)),
    ]


def test_each_tick_sends_a_message_to_its_actor(broker: InProcessBroker) -> None:
    sweep, clean_up = timetable(Settings())
    sweep()
    assert sent(broker) == {DELIVER}
    clean_up()
    assert sent(broker) == {DELIVER, CLEANUP}


def test_a_sweep_does_not_ask_the_flag(broker: InProcessBroker) -> None:
    assert wakeup.flag_for(broker, "outbox").try_set()
    timetable(Settings())[0]()
    assert sent(broker) == {DELIVER}


def test_a_tick_that_fails_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ConnectionError("no Redis")

    Tick("sweep", timedelta(seconds=10), fail)()
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "sweep: could not enqueue the message; the next try is in 0:00:10: no Redis")
    ]


class TestTheScheduler:
    def test_is_in_utc_keeps_its_jobs_in_memory_and_drops_no_late_tick(self) -> None:
        scheduler = make_scheduler(Settings())
        scheduler.start(paused=True)
        jobs: list[Any] = scheduler.get_jobs()
        scheduler.shutdown()
        assert scheduler.timezone is UTC
        assert {job.id for job in jobs} == {"sweep", "clean-up"}
        for job in jobs:
            assert (job.misfire_grace_time, job.coalesce, job.max_instances) == (None, True, 1)

    def test_ticks_at_once_and_again(self, broker: InProcessBroker) -> None:
        scheduler = make_scheduler(Settings(sweep_seconds=0.1))
        scheduler.start()
        try:
            assert wait_until(lambda: sent(broker) == {DELIVER, CLEANUP})
            assert wait_until(lambda: broker.queues["outbox"].qsize() >= 4)
        finally:
            scheduler.shutdown(wait=True)

    def test_goes_on_in_silence_while_the_database_hangs(
        self,
        box: Outbox,
        broker: InProcessBroker,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        released = threading.Event()
        calls: list[StoreRuns] = []
        monkeypatch.setattr(StoreRuns, "_store", lambda _: released.wait(60))
        store_runs = StoreRuns.__call__

        def call(each: StoreRuns) -> None:
            calls.append(each)
            store_runs(each)

        monkeypatch.setattr(StoreRuns, "__call__", call)
        declare()
        scheduler = make_scheduler(Settings(sweep_seconds=0.1))
        add_periodic_jobs(scheduler, box, seconds=0.1)
        scheduler.start()
        try:
            assert wait_until(lambda: len(calls) > 10 and broker.queues["outbox"].qsize() >= 3)
        finally:
            released.set()
            scheduler.shutdown(wait=True)
        # APScheduler warns of a tick that is due while the one before runs: on a busy machine any tick may be.
        own = [record for record in caplog.records if record.name.startswith("outbox")]
        assert [record.getMessage() for record in own if record.levelno >= logging.WARNING] == []

    def test_has_no_periodic_tick_without_periodic_jobs(self, box: Outbox) -> None:
        scheduler = make_scheduler(Settings())
        add_periodic_jobs(scheduler, box)
        assert {job.id for job in scheduler.get_jobs()} == {"sweep", "clean-up"}
        declare()
        add_periodic_jobs(scheduler, box)
        assert {job.id for job in scheduler.get_jobs()} == {"sweep", "clean-up", "periodic jobs"}

    def test_goes_on_while_a_tick_hangs(self, broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        released = threading.Event()
        monkeypatch.setattr(wakeup, "send_clean_up", lambda: released.wait(60))
        scheduler = make_scheduler(Settings(sweep_seconds=0.1))
        scheduler.start()
        try:
            assert wait_until(lambda: broker.queues["outbox"].qsize() >= 3)
        finally:
            released.set()
            scheduler.shutdown(wait=True)
