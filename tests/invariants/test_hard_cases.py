"""Cases that have broken an invariant once."""

import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from threading import Event as Gate
from typing import Any

import peewee
import psycopg
import pytest

import outbox
from outbox.core import Outbox
from outbox.delivery.deliver import drain
from outbox.settings import Settings
from outbox.storage import schema
from outbox.storage.connect import open_database
from outbox.storage.models import DELIVERED, FAILED, PENDING
from tests.conftest import Configure
from tests.support.table import at_work, becomes_true, change, emit, emit_one, on_postgres, passes, statuses, stored


def take(_: outbox.Event) -> None:
    """Accept any event."""


class TestAHandlerThatNeverReturns:
    @pytest.mark.usefixtures("usual_slices")
    def test_does_not_hold_up_the_worker_and_is_interrupted(self, configure: Configure) -> None:
        box = configure(lease_seconds=3, max_run_seconds=3)
        over = Gate()

        @outbox.handler("hang", name="hanging")
        def hang(_: outbox.Event) -> None:
            try:
                while True:
                    threading.Event().wait(0.01)
            finally:
                over.set()

        event = emit_one("hang")
        drain(box.delivery)  # returns
        passes(over)
        becomes_true(lambda: stored(event).status == PENDING)
        assert "longer than OUTBOX_MAX_RUN_SECONDS" in str(stored(event).error_message)
        assert stored(event).attempts == 1


class TestAWrongTimeOrRow:
    def test_a_retry_time_out_of_range_affects_only_its_own_event(self, box: Outbox) -> None:
        @outbox.handler("*", name="late")
        def handle(event: outbox.Event) -> None:
            if event.aggregate_id == "1":
                never = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))
                raise outbox.Unavailable("not in this life", not_before=never)

        emit(3)
        while box.process_pending_events()["processed"]:
            pass
        assert statuses() == {DELIVERED: 2, PENDING: 1}

    def test_a_row_that_can_not_be_planned_fails_in_the_end_and_stops_no_other(self, configure: Configure) -> None:
        box = configure(backoff_base_seconds=0)
        outbox.handler("*", name="taker")(take)
        broken, *others = emit(3, max_attempts=2)
        change(broken, progress={"taker": None})
        while box.process_pending_events()["processed"]:
            change(broken, progress={"taker": None})
        assert {stored(event).status for event in others} == {DELIVERED}
        assert stored(broken).status == FAILED


class TestADatabaseThatTurnsReadOnly:
    @on_postgres
    def test_loses_no_outcome_and_no_connection_stays_broken(self, box: Outbox) -> None:
        @outbox.handler("*", name="demoting")
        def demote(_: outbox.Event) -> None:
            box.database.execute_sql("SET default_transaction_read_only = on")

        event = emit_one()
        box.process_pending_events()  # in this thread, and so on that connection
        assert stored(event).status == DELIVERED
        assert emit_one("other").status == PENDING


class TestAnOutage:
    def test_longer_than_the_lease_loses_no_outcome_since_no_other_worker_could_claim(
        self, configure: Configure, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        box = configure(lease_seconds=0.5, max_run_seconds=20)
        called: list[str] = []
        outbox.handler("*", name="taker")(lambda event: called.append(event.aggregate_id))
        (event,) = emit(1)
        run, over = box.dialect.run, time.monotonic() + 1.0  # twice the lease

        def down(statement: str, parameters: Any = ()) -> Any:
            if "status = 'delivered'" in statement and time.monotonic() < over:
                raise peewee.OperationalError("the database is gone")
            return run(statement, parameters)

        monkeypatch.setattr(box.dialect, "run", down)
        box.process_pending_events()
        assert (stored(event).status, called, box.counters["fenced"]) == (DELIVERED, ["0"], 0)


class TestWhenNoThreadCanBeStarted:
    def test_leases_are_kept_again_as_soon_as_there_is_one(self, box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
        outbox.handler("*", name="taker")(take)
        event = emit_one()

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="new thread"):
                box.process_pending_events()
        assert (stored(event).status, stored(event).attempts) == (PENDING, 0)  # it went back
        assert box.process_pending_events() == {"processed": 1, "remaining": 0}
        assert (stored(event).status, box.delivery.leases._thread.is_running) == (DELIVERED, True)


class TestALockedRow:
    @on_postgres
    def test_does_not_hold_up_the_renewal_of_the_others(self, configure: Configure, postgres_url: str) -> None:
        box, gate, begun = configure(lease_seconds=0.6), Gate(), Gate()

        @outbox.handler("slow", name="slow")
        def wait(_: outbox.Event) -> None:
            begun.set()
            passes(gate)

        locked, kept = emit_one("slow"), emit_one("slow")
        with at_work(box, gate):
            passes(begun)
            with psycopg.connect(postgres_url) as rival:
                rival.execute("SELECT FROM outbox_event WHERE id = %s FOR UPDATE", (kept.id,))
                before = stored(locked).lease_until
                becomes_true(lambda: stored(locked).lease_until > before)


class TestInline:
    def test_what_is_due_again_at_once_does_not_hold_the_emitter(self, configure: Configure) -> None:
        box = configure(dispatch="inline", backoff_base_seconds=0)
        outbox.handler("known", name="known")(take)
        with box.database.atomic():
            event = outbox.emit("Thing", 1, "unknown")
        assert stored(event).status == PENDING


class TestASearchPath:
    @pytest.fixture
    def two_schemas(self, postgres_url: str) -> Iterator[Any]:
        """The tables are in `public`; the first schema on the path is another."""
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA mine")
        first: Any = open_database(postgres_url)
        Outbox(Settings(dispatch="off"), database=first).create_tables()
        first.close_all()
        database: Any = open_database(f"{postgres_url}?options=-csearch_path%3Dmine,public")
        yield database
        database.close_all()
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA mine CASCADE")

    def test_finds_the_tables_that_there_are_and_makes_no_second_ones(self, two_schemas: peewee.Database) -> None:
        box = Outbox(Settings(dispatch="off"), database=two_schemas)
        box.check_schema()
        assert schema.upgrade(box.dialect) == []
        assert two_schemas.get_tables("mine") == []
