"""A connection pool that is too small is no fault of the events: they wait for a connection, at no cost."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event as Gate
from typing import Any

import peewee
import pytest
from playhouse.pool import MaxConnectionsExceeded, PooledPostgresqlDatabase

import outbox
from outbox.core import Outbox
from outbox.delivery.context import WaitTimes
from outbox.delivery.lease import LeaseKeeper
from outbox.delivery.pool_size import PoolSize, check_pool, pool_size
from outbox.destinations.limits import Limits
from outbox.storage.models import DELIVERED, PENDING
from tests.conftest import Note
from tests.support.outbox_parts import replace_delivery
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import (
    at_work,
    becomes_true,
    emit,
    emit_one,
    error_of,
    on_postgres,
    passes,
    statuses,
    stored,
)

pytestmark = on_postgres


@contextmanager
def no_room(database: Any) -> Iterator[None]:
    """The pool has no connection beyond those that are in use now, and does not wait for any."""
    before = database._max_connections, database._wait_timeout
    database._max_connections, database._wait_timeout = len(database._in_use), None
    try:
        yield
    finally:
        database._max_connections, database._wait_timeout = before


class Greedy:
    """A handler that keeps a connection until its gate opens, and another one that finds none left."""

    def __init__(self) -> None:
        self.holding, self.gate, self.exhausted = Gate(), Gate(), Gate()
        self.errors: list[type[Exception]] = []
        outbox.handler("order.*", name="greedy")(self._hold)
        outbox.handler("order.*", name="modest")(self._write)

    def _hold(self, _: outbox.Event) -> None:
        Note.create(text="greedy")
        self.holding.set()
        passes(self.gate)

    def _write(self, _: outbox.Event) -> None:
        passes(self.exhausted)
        try:
            Note.create(text="modest")
        except Exception as error:
            self.errors.append(type(error))
            raise


def test_a_handler_that_finds_no_connection_is_called_again_when_there_is_one(box: Outbox, database: Any) -> None:
    greedy = Greedy()
    event = emit_one()
    with at_work(box, greedy.gate):
        passes(greedy.holding)
        with no_room(database):
            greedy.exhausted.set()
            becomes_true(lambda: greedy.errors == [MaxConnectionsExceeded])
            greedy.gate.set()
            becomes_true(lambda: greedy_is_done(database))
        becomes_true(lambda: statuses() == {DELIVERED: 1})
    assert stored(event).attempts == 1


def greedy_is_done(database: Any) -> bool:
    return sorted(note.text for note in Note.select().bind(database)) == ["greedy", "modest"]


def test_after_some_seconds_the_event_is_put_off_at_no_cost_and_the_circuit_breaker_stays_closed(
    box: Outbox, database: Any
) -> None:
    leases = LeaseKeeper(box.dialect, box.settings, slice_seconds=PATIENCE_SECONDS)
    replace_delivery(box, waits=WaitTimes(connection_seconds=0.01), leases=leases)
    greedy = Greedy()
    events = emit(10)
    with at_work(box, greedy.gate, greedy.exhausted, batch_size=10):
        passes(greedy.holding)
        with no_room(database):
            greedy.exhausted.set()
            becomes_true(lambda: len(greedy.errors) == 10)
            becomes_true(lambda: all(thread.name != "outbox-to-modest" for thread in threading.enumerate()))
        greedy.gate.set()
        becomes_true(lambda: statuses()[PENDING] == 10)
    for row in map(stored, events):
        assert row.progress["modest"].get("attempts", 0) == 0
        assert "raise its max_connections" in row.progress["modest"]["error"]
    assert box.throttles.breakers() == {}


def test_a_pool_of_the_handlers_own_costs_no_attempt_either(box: Outbox) -> None:
    @outbox.handler("order.*", name="elsewhere")
    def handle(_: outbox.Event) -> None:
        raise RuntimeError("wrapped") from MaxConnectionsExceeded("Exceeded maximum connections.")

    event = emit_one()
    box.process_pending_events()
    assert (stored(event).status, stored(event).attempts) == (PENDING, 0)
    assert "max_connections" in error_of(event)


class TestWithoutAutoconnect:
    """Our own code connects for the handler."""

    @pytest.fixture
    def called(self) -> list[str]:
        """Two handlers, so that each has a thread; and which of them were called."""
        called: list[str] = []
        for name in ("first", "second"):
            outbox.handler("order.*", name=name)(lambda _, name=name: called.append(name))
        return called

    @pytest.fixture(autouse=True)
    def _without_autoconnect(self, database: Any) -> Iterator[None]:
        database.autoconnect = False
        yield
        database.autoconnect = True

    def test_a_call_waits_until_there_is_a_connection(
        self, box: Outbox, database: Any, called: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        connect = database.connect

        def make_room_when_refused(**options: Any) -> Any:
            try:
                return connect(**options)
            except MaxConnectionsExceeded:
                database._max_connections += 2
                raise

        with box.dialect.connection():
            event = emit_one()
            with no_room(database):
                monkeypatch.setattr(database, "connect", make_room_when_refused)
                box.process_pending_events()
            assert (sorted(called), stored(event).status) == (["first", "second"], DELIVERED)

    def test_after_some_seconds_the_event_is_put_off_at_no_cost(
        self, box: Outbox, database: Any, called: list[str]
    ) -> None:
        replace_delivery(box, waits=WaitTimes(connection_seconds=0.1))
        with box.dialect.connection():
            event = emit_one()
            with no_room(database):
                box.process_pending_events()
            assert (called, stored(event).status, stored(event).attempts) == ([], PENDING, 0)
            assert "max_connections" in error_of(event)


def size_of(box: Outbox) -> PoolSize | None:
    return pool_size(box.database, box.registry, drains=box.settings.drains, threads=8)


def check(box: Outbox) -> PoolSize | None:
    return check_pool(box.database, box.registry, drains=box.settings.drains, threads=8)


class TestTheSize:
    @pytest.fixture
    def pooled(self, box: Outbox) -> Outbox:
        """Peewee's pool with its default size, and handlers that may want more connections."""
        small = PooledPostgresqlDatabase("app", prefer_psycopg3=True)
        for number in range(12):
            outbox.handler("order.*", name=f"slow-{number}")(lambda _: None)
        return Outbox(box.settings, database=small, registry=box.registry)

    def test_is_what_threads_handlers_and_settling_may_want_at_once(self, pooled: Outbox) -> None:
        assert size_of(pooled) == PoolSize(20, 8 + 12 * pooled.settings.drains + 1)
        outbox.handler("*", name="limited", concurrency=5)(lambda _: None)
        pooled.registry.add(Other())
        assert size_of(pooled) == PoolSize(20, 8 + 12 * pooled.settings.drains + 5 + 1)

    def test_that_is_too_small_is_warned_about_at_the_start_with_the_number_to_set(
        self, pooled: Outbox, caplog: pytest.LogCaptureFixture
    ) -> None:
        found = check(pooled)
        (warned,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert "has 20 connections" in warned
        assert "max_connections=33" in warned
        assert found == PoolSize(20, 33)

    @pytest.mark.parametrize("most", [33, 0, None])
    def test_that_is_enough_is_not(self, pooled: Outbox, caplog: pytest.LogCaptureFixture, most: int | None) -> None:
        database: Any = pooled.database
        database._max_connections = most
        check(pooled)
        assert caplog.records == []

    def test_without_a_pool_there_is_none(self, box: Outbox) -> None:
        database = peewee.PostgresqlDatabase("app", prefer_psycopg3=True)
        assert size_of(Outbox(box.settings, database=database)) is None


class Other:
    """A destination that uses no connection of the application's."""

    name, events, limits = "other", ("*",), Limits()

    def deliver(self, events: Any, lease: outbox.Lease) -> Any:
        return []
