"""Several outboxes in a process: a database for each tenant or shard, served by the same workers."""

import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dramatiq
import peewee
import pytest
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox.core import Outbox
from outbox.current_outbox import outboxes
from outbox.dramatiq import actors, wakeup
from outbox.dramatiq.actor_names import CLEANUP, DELIVER
from outbox.dramatiq.broker import set_global_broker
from outbox.dramatiq.worker import may_have_jobs, start_worker
from outbox.errors import NothingRegistered, SettingsError
from outbox.scheduler.timetable import timetable
from outbox.settings import Settings
from outbox.storage.connect import open_database
from tests.conftest import Configure, Note
from tests.support.processes import BIN, MakeStage

on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """Use SQLite, but where processes are started."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def eu(box: Outbox, tmp_path: Path) -> Iterator[Outbox]:
    database: Any = open_database(f"sqlite:///{tmp_path / 'eu.sqlite3'}")
    eu = outbox.configure(name="eu", database=database, dispatch="off", publish_seconds=0)
    eu.create_tables()
    yield eu
    database.close_all()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubBroker]:
    monkeypatch.setattr(dramatiq.broker, "global_broker", None)
    broker = StubBroker()
    broker.emit_after("process_boot")
    set_global_broker(broker)
    yield broker
    broker.close()


def types(box: Outbox) -> list[tuple[str, str]]:
    rows = box.database.execute_sql("SELECT event_type, status FROM outbox_event ORDER BY seq").fetchall()
    return [(str(name), str(status)) for name, status in rows]


def reported(box: Outbox) -> set[str]:
    return {str(kind) for (kind,) in box.database.execute_sql("SELECT kind FROM outbox_process").fetchall()}


@on_sqlite
class TestUsing:
    def test_the_functions_of_the_package_work_on_the_chosen_outbox(self, box: Outbox, eu: Outbox) -> None:
        outbox.emit("Order", 1, "order.placed")
        with outbox.using("eu") as chosen:
            assert chosen is eu is outbox.current()
            outbox.emit("Order", 2, "order.moved")
            with outbox.using(None):
                outbox.emit("Order", 3, "order.placed")
        assert outbox.current() is box
        assert types(box) == [("order.placed", "pending")] * 2
        assert types(eu) == [("order.moved", "pending")]

    def test_a_handler_finds_the_outbox_whose_event_it_handles(self, box: Outbox, eu: Outbox) -> None:
        @outbox.handler("order.placed", name="follow")
        @outbox.inbox.once("follow")
        def follow(event: outbox.Event) -> None:
            outbox.emit("Order", event.aggregate_id, "order.followed")

        eu.emit("Order", 1, "order.placed")
        assert eu.process_pending_events()["processed"] == 1
        assert ("order.followed", "pending") in types(eu)
        assert types(box) == []
        assert [each.database.execute_sql("SELECT count(*) FROM inbox").fetchone()[0] for each in (box, eu)] == [0, 1]

    def test_a_hook_finds_the_outbox_whose_event_has_failed(self, box: Outbox, eu: Outbox) -> None:
        found: list[Outbox] = []
        outbox.on_failure(lambda failure: found.append(outbox.current()))

        @outbox.handler("order.placed", name="reject")
        def reject(event: outbox.Event) -> None:
            raise outbox.Reject("no")

        for each in (eu, box):
            each.emit("Order", 1, "order.placed")
            each.process_pending_events()
        assert found == [eu, box]

    def test_a_handler_that_can_not_reach_one_database_is_called_for_the_others(self, box: Outbox, eu: Outbox) -> None:
        @outbox.handler("order.placed", name="tenant")
        def handle(event: outbox.Event) -> None:
            if outbox.current() is eu:
                raise outbox.Unavailable("the tenant's database is gone")

        for each in (eu, box):
            with each.database.atomic():
                each.emit_many([("Order", number, "order.placed") for number in range(20)])
            each.process_pending_events()
        assert eu.throttles.breakers()["tenant"]["open"]
        assert box.throttles.breakers() == {}
        assert Counter(types(box)) == {("order.placed", "delivered"): 20}

    def test_a_name_that_is_not_configured_is_refused(self, box: Outbox, eu: Outbox) -> None:
        with pytest.raises(SettingsError, match=r"called 'us' \(eu\)\. Call outbox\.configure\(name='us'"):
            outbox.using("us").__enter__()

    @pytest.mark.parametrize("name", ["", "1st", "a.b", "a b", "x" * 41])
    def test_a_name_that_is_no_name_of_a_queue_is_refused(self, box: Outbox, name: str) -> None:
        with pytest.raises(SettingsError, match="The name of an outbox has up to 40"):
            outbox.configure(name=name, database=box.database)

    def test_a_second_outbox_needs_a_database_and_has_no_destinations_of_its_own(self, box: Outbox) -> None:
        with pytest.raises(SettingsError, match="needs a database"):
            outbox.configure(name="eu")
        with pytest.raises(SettingsError, match="webhook_url can't be set for the outbox 'eu'"):
            outbox.configure(name="eu", database=box.database, webhook_url="https://crm.invalid/")

    def test_it_has_a_queue_of_its_own(self, configure: Configure, box: Outbox, eu: Outbox) -> None:
        assert (eu.settings.queue, outboxes()) == ("outbox.eu", [box, eu])
        again = outbox.configure(name="eu", database=eu.database, queue="mine")
        assert (again.settings.queue, outboxes()) == ("mine", [box, again])


@on_sqlite
class TestAWorker:
    def test_delivers_and_cleans_up_for_the_outbox_that_a_message_names(
        self, box: Outbox, eu: Outbox, broker: StubBroker
    ) -> None:
        outbox.handler("*", name="note")(lambda event: Note.create(text=f"{event.aggregate_id}"))
        start_worker(broker)
        assert not may_have_jobs(broker)
        assert broker.get_declared_queues() >= {"outbox", "outbox.eu"}
        box.emit("Order", 1, "order.placed")
        eu.emit("Order", 2, "order.placed")
        worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=50)
        worker.start()
        try:
            wakeup.send_to(eu, DELIVER)
            broker.join("outbox.eu")
            worker.join()
            assert (types(box)[0][1], types(eu)[0][1]) == ("pending", "delivered")
            eu.settings = eu.settings.changed(retention_hours=0)
            wakeup.send_to(eu, CLEANUP)
            broker.join("outbox.eu")
            worker.join()
            assert (len(types(box)), len(types(eu))) == (1, 0)
        finally:
            worker.stop()

    def test_no_message_of_a_named_outbox_waits_for_the_default_database(
        self, box: Outbox, eu: Outbox, broker: StubBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outbox.handler("*", name="note")(lambda event: None)
        start_worker(broker)
        connected: list[object] = []
        monkeypatch.setattr(box.database, "connect", lambda **_: connected.append(1))
        worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=50)
        worker.start()
        try:
            wakeup.send_to(eu, DELIVER)
            broker.join("outbox.eu")
            worker.join()
        finally:
            worker.stop()
        assert connected == []

    def test_does_not_start_if_one_of_them_can_not_be_served(self, box: Outbox, eu: Outbox, broker: StubBroker) -> None:
        with pytest.raises(NothingRegistered):
            start_worker(broker)


@on_sqlite
def test_the_scheduler_sweeps_and_cleans_up_each_of_them(box: Outbox, eu: Outbox, broker: StubBroker) -> None:
    actors.declare_actors(broker, eu.settings, "eu")
    ticks = {tick.name: tick for tick in timetable(Settings(), [eu])}
    assert list(ticks) == ["sweep", "clean-up", "sweep of eu", "clean-up of eu"]
    ticks["sweep of eu"]()
    assert broker.queues["outbox.eu"].qsize() == 1


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_database_that_does_not_respond_holds_up_no_other(
    make_stage: MakeStage, redis_server: Any, tmp_path: Path, url: str
) -> None:
    """One worker, sweeps every second, and a database host that accepts connections and says nothing."""
    eu_url = f"sqlite:///{tmp_path / 'eu.sqlite3'}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow_url = f"postgresql://u:p@127.0.0.1:{silent.getsockname()[1]}/slow?connect_timeout=2"
        stage = make_stage(sweep_seconds=1)
        eu = Outbox(Settings.load({}, database_url=eu_url, dispatch="off"), database=open_database(eu_url))
        eu.create_tables()
        stage.environment |= {"OUTBOX_TEST_EU": eu_url, "OUTBOX_TEST_SLOW": slow_url}
        options = ("-p", "1", "-t", "2")
        stage.start("worker", BIN / "outbox", "worker", "tests.apps.shards", *options, ready="ready for action")
        stage.start("scheduler", BIN / "outbox", "scheduler", "tests.apps.shards", ready="scheduler started")
        stage.emit(3)
        for number in range(3):
            eu.emit("Thing", str(number), "test.emitted")
        expected = {("test.emitted", "delivered"): 3, ("test.answered", "delivered"): 3}
        stage.wait_for(lambda: Counter(types(stage.box)) == expected, "the default outbox is served")
        stage.wait_for(lambda: Counter(types(eu)) == expected, "the outbox eu is served")
        stage.wait_for(lambda: reported(eu) == {"worker", "scheduler"}, "both report to the outbox eu, too")
        peewee.Database.close(eu.database)
