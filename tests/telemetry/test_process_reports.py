"""Process reports: every count is reported once, whatever happens, and nothing else is disturbed by it."""

import contextlib
import gc
import logging
import math
import signal
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import peewee
import psycopg
import pytest
from playhouse.pool import PooledDatabase

import outbox
from outbox.core import Outbox
from outbox.destinations.handler import Handler
from outbox.settings import Settings
from outbox.storage.connect import open_database
from outbox.storage.operator_models import Process, Total
from outbox.storage.private_connection import can_be_private
from outbox.telemetry.labels import labels_as_text, labels_from_text
from outbox.telemetry.process_reports import SCHEDULER, WORKER, ProcessReporter
from outbox.text import ERROR_LENGTH
from outbox.throttle.delivery_mode import DeliveryMode
from tests.conftest import Configure, Note
from tests.support.crowd import at_once
from tests.support.processes import MakeStage, Stage, make_stage, stage
from tests.support.program import run_python
from tests.support.servers import Postgres
from tests.support.table import another, becomes_true, emit, emit_one, on_postgres, stored

__all__ = ["make_stage", "stage"]

TABLES = ("outbox_process", "outbox_total", "outbox_minute")


def totals(box: Outbox) -> dict[str, float]:
    """Return what all processes together have counted, without labels."""
    with box.dialect.connection():
        return {row.name: row.value for row in Total.select().where(Total.labels == "").execute(box.database)}


def processes(box: Outbox) -> list[Process]:
    with box.dialect.connection():
        return list(Process.select().execute(box.database))


@contextlib.contextmanager
def reporting(box: Outbox, kind: str = WORKER) -> Iterator[None]:
    """Run the reporter's thread inside the block."""
    box.reporter.start(kind)
    try:
        yield
    finally:
        box.reporter.stop()


class TestCounts:
    def test_of_several_processes_add_up(self, box: Outbox) -> None:
        rival = another(box)
        for each, number in ((box, 2), (rival, 3), (box, 4)):
            each.counters.add(delivered=number)
            each.counters.add_labelled("outcomes", {(("destination", "a"), ("outcome", "retry")): number})
            each.reporter.report_now()
        assert totals(box) == {"delivered": 9}
        (row,) = Total.select().where(Total.name == "outcomes").execute(box.database)
        assert (labels_from_text(row.labels), row.value) == ((("destination", "a"), ("outcome", "retry")), 9)

    def test_that_many_processes_report_at_once_add_up(self, box: Outbox) -> None:
        boxes = [another(box) for _ in range(6)]

        def report_often(each: Outbox, number: int) -> None:
            names = ["delivered", "failed", "emitted", "retried"]
            for _ in range(10):
                each.counters.add(**dict.fromkeys(names[number % 4 :] + names[: number % 4], 1))
                each.counters.observe("latency", [0.1, 7.0, 100.0])
                each.reporter.report_now()

        calls = [lambda each=each, number=number: report_often(each, number) for number, each in enumerate(boxes)]
        assert at_once(box.database, calls) == [None] * 6
        assert totals(box) | {"latency_sum": 0} == {
            "delivered": 60,
            "failed": 60,
            "emitted": 60,
            "retried": 60,
            "latency_sum": 0,
        }

    def test_whose_commit_was_not_confirmed_are_counted_once(self, box: Outbox) -> None:
        whole = box.dialect.atomic

        @contextlib.contextmanager
        def unconfirmed() -> Iterator[None]:
            with whole():
                yield
            raise peewee.OperationalError("server closed the connection unexpectedly")

        box.counters.add(delivered=1)
        with mock.patch.object(box.dialect, "atomic", unconfirmed), pytest.raises(peewee.OperationalError):
            box.reporter.report_now()
        assert totals(box) == {"delivered": 1}
        box.counters.add(delivered=10)
        box.reporter.report_now()
        assert totals(box) == {"delivered": 11}

    def test_that_could_not_be_written_are_in_the_next_report(self, box: Outbox) -> None:
        whole = box.dialect.atomic

        @contextlib.contextmanager
        def lost() -> Iterator[None]:
            with whole():
                yield
                raise peewee.OperationalError("server closed the connection unexpectedly")

        for _ in range(3):
            box.counters.add(delivered=1)
            with mock.patch.object(box.dialect, "atomic", lost), pytest.raises(peewee.OperationalError):
                box.reporter.report_now()
        assert totals(box) == {}
        box.reporter.report_now()
        assert totals(box) == {"delivered": 3}

    def test_are_kept_while_the_tables_are_missing_and_delivery_goes_on(
        self, configure: Configure, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, logger="outbox")
        box = configure(publish_seconds=0.01)
        for table in TABLES:
            box.dialect.run(f"ALTER TABLE {table} RENAME TO {table}_gone")
        outbox.handler("*", name="h")(lambda event: None)
        event = emit_one()
        with reporting(box):
            becomes_true(lambda: "Could not write this process's report" in caplog.text)
            box.process_pending_events()
            assert stored(event).status == "delivered"
            for table in TABLES:
                box.dialect.run(f"ALTER TABLE {table}_gone RENAME TO {table}")
            becomes_true(lambda: totals(box).get("delivered") == 1)
        assert totals(box)["emitted"] == 1
        assert caplog.text.count("Could not write this process's report") == 1

    @pytest.mark.parametrize(
        "name",
        ["a\0b", "\ud800", "ä" * 1000, '"\\' * 500, "\x01" * 500],
        ids=["nul", "surrogate", "long", "escaped", "longer escaped"],
    )
    def test_of_a_destination_with_any_name_are_stored(self, box: Outbox, name: str) -> None:
        box.counters.observe("send", [1.0], destination=name)
        box.counters.add_labelled("outcomes", {(("destination", name), ("outcome", "unavailable")): 1})
        box.reporter.report_now()
        assert Total.select().count(box.database) == 3

    @pytest.mark.parametrize("count", [math.nan, math.inf])
    def test_that_are_not_finite_are_left_out(self, box: Outbox, count: Any) -> None:
        box.counters.add_labelled("outcomes", {(("destination", "a"),): count, (("destination", "b"),): 1})
        box.reporter.report_now()
        assert [row.value for row in Total.select().execute(box.database)] == [1]

    def test_of_destinations_whose_names_begin_alike_are_added_up(self, box: Outbox) -> None:
        names = ["x" * 300 + end for end in "ab"]
        box.counters.add_labelled("outcomes", {(("destination", name),): 1 for name in names})
        box.reporter.report_now()
        assert [row.value for row in Total.select().execute(box.database)] == [2]

    def test_do_not_include_events_that_are_rolled_back(self, box: Outbox) -> None:
        with contextlib.suppress(ZeroDivisionError), box.database.atomic():
            emit(3)
            raise ZeroDivisionError
        with box.database.atomic():
            emit(2)
            emit_one()
            assert box.counters["emitted"] == 0
        assert box.counters["emitted"] == 3

    def test_of_events_emitted_inside_manual_commit_are_added_at_once(self, box: Outbox) -> None:
        with box.dialect.connection(), box.database.manual_commit():
            box.database.begin()
            emit_one()
            box.database.commit()
        assert box.counters["emitted"] == 1

    def test_labels_are_read_as_they_were_written(self) -> None:
        labels = (("a", "1"), ("b", 'x"y'))
        assert labels_from_text(labels_as_text(labels)) == labels
        assert labels_from_text(labels_as_text(())) == ()


class TestAProcess:
    def test_is_in_the_table_while_it_reports_and_removed_when_it_stops(self, configure: Configure) -> None:
        box = configure(publish_seconds=3600)
        with reporting(box, SCHEDULER):
            becomes_true(lambda: [process.kind for process in processes(box)] == [SCHEDULER])
            box.counters.add(delivered=7)
        assert processes(box) == []
        assert totals(box) == {"delivered": 7}

    def test_that_emits_starts_reporting_with_the_first_event_and_writes_after_the_interval(
        self, configure: Configure
    ) -> None:
        box = configure(publish_seconds=3600, dispatch="dramatiq")
        emit(1)
        assert box.reporter.kind == "application"
        assert processes(box) == []
        box.reporter.stop()
        assert totals(box)["emitted"] == 1

    def test_that_stops_and_starts_again_reports_again(self, configure: Configure) -> None:
        box = configure(publish_seconds=3600)
        for number in (1, 2):
            with reporting(box):
                box.counters.add(delivered=1)
            assert totals(box) == {"delivered": number}

    def test_whose_outbox_is_garbage_collected_writes_a_last_report(self, database: peewee.Database, url: str) -> None:
        box = Outbox(Settings(dispatch="off", publish_seconds=3600), database=open_database(url))
        watching = Outbox(Settings(dispatch="off"), database=database)
        box.reporter.start(WORKER)
        becomes_true(lambda: len(processes(watching)) == 1)
        box.counters.add(delivered=1)
        del box
        gc.collect()
        becomes_true(lambda: totals(watching) == {"delivered": 1})
        becomes_true(lambda: processes(watching) == [])

    @on_postgres
    def test_that_is_frozen_while_it_reports_blocks_others_only_for_the_lock_timeout(
        self, configure: Configure, url: str
    ) -> None:
        box = configure()
        box.reporter = ProcessReporter(box.dialect, box.counters, 0, box.reporter._details, lock_seconds=0.1)
        box.counters.add(delivered=1)
        box.reporter.report_now()
        with frozen(url, box):
            box.counters.add(delivered=1)
            with pytest.raises(peewee.OperationalError):
                box.reporter.report_now()
        box.reporter.report_now()
        assert totals(box) == {"delivered": 2}


@contextlib.contextmanager
def frozen(url: str, box: Outbox) -> Iterator[None]:
    """Hold the locks of another process that is frozen in the middle of its report."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT FROM outbox_total FOR UPDATE")
        yield


class TestTheApplication:
    def test_loses_no_connection_of_its_pool_to_the_reporter(self, configure: Configure) -> None:
        box = configure(publish_seconds=0.01)
        assert isinstance(box.database, PooledDatabase)
        box.database._max_connections = 1
        with box.dialect.connection(), reporting(box):
            before = (box.database._connections.copy(), dict(box.database._in_use))
            assert len(before[1]) == 1
            for number in (1, 2, 3):
                box.counters.add(delivered=1)
                becomes_true(lambda number=number: totals(box) == {"delivered": number})
            assert (box.database._connections, box.database._in_use) == before

    def test_has_no_connection_left_open_by_the_reporter(self, postgres_server: Postgres) -> None:
        # In a database of its own, because in that of the other tests a lease keeper of an earlier test may still have
        # its connection open, until the time of its next renewal.
        url = postgres_server.create_database("left_open")
        box = Outbox(Settings(dispatch="off", publish_seconds=0.01), database=open_database(url))
        box.create_tables()
        with reporting(box):
            becomes_true(lambda: len(processes(box)) == 1)
        box.database.close()
        box.close()
        with psycopg.connect(url, autocommit=True) as watching:
            others = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid() "
                "AND backend_type = 'client backend'"
            )
            becomes_true(lambda: watching.execute(others).fetchone() == (0,))

    def test_has_no_report_in_its_transaction(self, configure: Configure) -> None:
        box = configure(publish_seconds=0.01)
        with box.database.atomic() as transaction:
            Note.create(text="rolled back")
            with reporting(box) if box.dialect.name == "postgres" else contextlib.nullcontext():
                box.counters.add(delivered=1)
            assert box.database.in_transaction()
            transaction.rollback()
        assert Note.select().count() == 0
        assert totals(box) == ({"delivered": 1} if box.dialect.name == "postgres" else {})

    def test_whose_threads_share_one_connection_is_not_reported(self, url: str) -> None:
        class Shared(peewee.SqliteDatabase):
            pass

        database = Shared(
            ":memory:" if url.startswith("postgres") else url.removeprefix("sqlite:///"), thread_safe=False
        )
        assert not can_be_private(database)
        box = Outbox(Settings(dispatch="off"), database=database)
        box.reporter.start(WORKER)
        assert not box.reporter._thread.is_running

    def test_may_remove_its_database_file_and_no_report_creates_it_again(self, sqlite_url: str) -> None:
        box = Outbox(Settings(dispatch="off", publish_seconds=3600), database=open_database(sqlite_url))
        box.create_tables()
        box.close()
        file = Path(box.database.database)
        with reporting(box):
            becomes_true(lambda: len(processes(box)) == 1)
            box.database.close()
            box.close()
            for path in file.parent.glob(f"{file.name}*"):
                path.unlink()
        assert not file.exists()

    def test_has_no_transaction_open_while_a_report_waits_for_redis(self, configure: Configure) -> None:
        with silent_server() as address:
            box = configure(redis_url=f"redis://{address}/0")
            box.throttles.of(Handler(lambda event: None, ["*"], "h"))
            in_transaction = []
            report = box.throttles.breakers

            def looking() -> Any:
                in_transaction.append(box.dialect.in_transaction)
                return report()

            with mock.patch.object(box.throttles, "breakers", looking):
                box.reporter.report_now()
        assert in_transaction == [False]
        assert len(processes(box)) == 1


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """Run a server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        yield f"{host}:{port}"


# Real processes

EMIT = """
import os, outbox
def emit(number):
    for _ in range(number):
        with outbox.current().database.atomic():
            outbox.emit("Thing", "1", "test.emitted", idempotency_key=outbox.UNIQUE)
    outbox.current().database.close()
"""


@pytest.fixture
def watching(url: str) -> Iterator[Outbox]:
    box = Outbox(Settings(dispatch="off"), database=open_database(url))
    box.create_tables()
    yield box
    box.database.close_all()  # type: ignore[attr-defined]


class Odd:
    """A destination whose details JSON or PostgreSQL would refuse as they are."""

    name = "odd"
    hold_seconds = timedelta(seconds=5)
    limits = outbox.Limits(open_after=1)
    events = ("*",)

    def deliver(self, events: Any, lease: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("error", "stored_error"),
    [
        ("refused\0by a proxy", "refused\ufffdby a proxy"),
        ("half \ud800", "half ?"),
        ("x" * 1_000_000, "x" * (ERROR_LENGTH - 1) + "…"),
    ],
    ids=["nul", "surrogate", "very long"],
)
def test_a_breakers_error_can_be_any_text(box: Outbox, error: str, stored_error: str) -> None:
    odd: Any = Odd()
    box.registry.add(odd)
    admission = box.throttles.of(odd).admit(1, mode=DeliveryMode.ONE_BATCH)
    admission.record_outcome(outbox.Unavailable(error))
    box.reporter.report_now()
    (process,) = processes(box)
    ((name, breaker),) = process.details["breakers"].items()
    assert (name, list(process.details["destinations"])) == ("odd", ["odd"])
    assert (breaker["open"], breaker["error"]) == (True, stored_error)
    box.reporter.report_now()  # the second time the row is updated, not inserted
    assert len(processes(box)) == 1


def test_a_short_process_reports_at_its_end(watching: Outbox, url: str) -> None:
    run_python(EMIT + "emit(3)", database_url=url)
    assert totals(watching) == {"emitted": 3}
    assert processes(watching) == []


def test_a_forked_child_reports_its_own_counts_and_none_of_its_parent(watching: Outbox, url: str) -> None:
    code = """
emit(3)
outbox.current().database.close_all()
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        emit(2)
        raise SystemExit
    children.append(pid)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
emit(1)
"""
    run_python(EMIT + code, database_url=url)
    assert totals(watching) == {"emitted": 10}
    assert processes(watching) == []


def test_forks_while_the_parent_reports_all_the_time_lose_and_double_no_count(watching: Outbox, url: str) -> None:
    code = """
from outbox import background_thread
background_thread.FORK_SECONDS = 60  # even if a report takes long on a busy machine
emit(1)
for _ in range(5):
    outbox.current().database.close_all()
    pid = os.fork()
    if pid == 0:
        emit(1)
        raise SystemExit
    emit(1)
    assert os.waitpid(pid, 0)[1] == 0
"""
    run_python(EMIT + code, database_url=url, publish_seconds=0.002)
    assert totals(watching) == {"emitted": 11}
    assert processes(watching) == []


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_child_of_multiprocessing_reports_at_its_end(watching: Outbox, url: str, how: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    code = f"""
if __name__ == "__main__":
    import multiprocessing
    emit(1)
    outbox.current().database.close_all()
    child = multiprocessing.get_context({how!r}).Process(target=emit, args=(2,))
    child.start()
    child.join()
    assert child.exitcode == 0
"""
    program.write_text(EMIT + code)
    run_python(f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')", database_url=url)
    assert totals(watching) == {"emitted": 3}


def test_counts_of_workers_add_up_exactly_when_they_have_stopped(make_stage: MakeStage) -> None:
    stage = make_stage(publish_seconds=0.2, lease_seconds=30)
    workers = [stage.worker(processes=2, threads=4) for _ in range(2)]
    for _ in range(20):
        stage.emit(50)
        stage.wake()
    stage.emit(3, do="fail", times=1, max_attempts=1)
    stage.wake()
    stage.wait_until_all("delivered", "failed")
    stage.wait_for(lambda: len(processes(stage.box)) == 4, "each process has reported")
    # multiprocessing has processes of its own beside them: a resource tracker and, from Python 3.14 on, a fork server.
    seen = {process.pid for process in processes(stage.box)}
    assert seen <= {pid for worker in workers for pid in worker.children()}
    for worker in workers:
        worker.signal(signal.SIGTERM)
    assert [worker.wait() for worker in workers] == [0, 0]
    counted = totals(stage.box)
    assert (counted["delivered"], counted["failed"]) == (1000, 3)
    assert counted["claimed"] == 1003 + counted.get("retried", 0) + counted.get("released", 0)
    assert outcomes(stage) == {"delivered": 1000, "retry": 3}
    assert buckets(stage, "latency_bucket") == 1000
    assert buckets(stage, "send_bucket") == 1003
    assert processes(stage.box) == []


def outcomes(stage: Stage) -> dict[str, float]:
    with stage.box.dialect.connection():
        rows = Total.select().where(Total.name == "outcomes").execute(stage.box.database)
        return {dict(labels_from_text(row.labels))["outcome"]: row.value for row in rows}


def buckets(stage: Stage, name: str) -> float:
    with stage.box.dialect.connection():
        return sum(float(row.value) for row in Total.select().where(Total.name == name).execute(stage.box.database))


def test_a_worker_that_is_killed_loses_only_the_counts_since_its_last_report(make_stage: MakeStage) -> None:
    stage = make_stage(publish_seconds=0.05)
    worker = stage.worker()
    stage.emit(200)
    stage.wake()
    stage.wait_for(lambda: totals(stage.box).get("delivered") == 200, "200 are reported")
    stage.wait_for(lambda: outcomes(stage) == {"delivered": 200}, "their outcomes are reported, perhaps a report later")
    worker.kill()
    assert totals(stage.box)["delivered"] == 200
    assert outcomes(stage) == {"delivered": 200}


def test_a_worker_reports_again_when_its_tables_are_back(make_stage: MakeStage) -> None:
    """Counts are kept through an outage of the tables, in a real process."""
    stage = make_stage(publish_seconds=0.05)
    worker = stage.worker()
    with stage.box.dialect.connection():
        stage.box.dialect.run("ALTER TABLE outbox_total RENAME TO elsewhere")
        stage.emit(10)
        stage.wake()
        stage.wait_until_all("delivered")
        stage.wait_for(lambda: "Could not write this process's report" in worker.said(), "it is logged")
        stage.box.dialect.run("ALTER TABLE elsewhere RENAME TO outbox_total")
    stage.wait_for(lambda: totals(stage.box).get("delivered") == 10, "all are reported")
