"""A session that the server ends is the entry's failure; an unavailable server is not."""

from functools import partial
from typing import Any

import peewee
import psycopg
import pytest

import outbox
from outbox.consumer.handler_session import DatabaseServer, HandlerSession
from outbox.core import Outbox
from outbox.events.event import Event
from outbox.storage.connect import open_database
from outbox.storage.dialects import dialect_of
from outbox.table_names import Tables
from tests.consumer.streams import MakeConsumer, Stream, consume, dealt_with, note, notes
from tests.support.servers import PostgresServer
from tests.support.table import becomes_true


@pytest.fixture
def url(postgres_url: str) -> str:
    """SQLite has no sessions."""
    return postgres_url


@pytest.fixture
def make_consumer(make_consumer: MakeConsumer) -> MakeConsumer:
    """Make consumers that try the database again soon."""
    return partial(make_consumer, {"database_retry_seconds": 0.01})


def wait_until_ended(url: str, pid: int) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        running = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        becomes_true(lambda: other.execute(running, (pid,)).fetchone() == (0,))


def outlast_the_timeout(database: Any, url: str) -> None:
    """Wait, as a handler would, with an open transaction, until the server ends the session."""
    database.execute_sql("SET LOCAL idle_in_transaction_session_timeout = 1")
    wait_until_ended(url, database.connection().info.backend_pid)


def be_terminated(database: Any, url: str) -> None:
    pid = database.connection().info.backend_pid
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (pid,))
    wait_until_ended(url, pid)


class TestAHandlerWhoseSessionTheServerEnds:
    @pytest.mark.parametrize("then", ["returns", "asks", "raises"])
    @pytest.mark.parametrize("end", [outlast_the_timeout, be_terminated])
    def test_is_parked_in_the_end_and_the_others_go_on(
        self, postgres_url: str, stream: Stream, make_consumer: MakeConsumer, end: Any, then: str
    ) -> None:
        stream.add({"n": "slow"})
        stream.add({"n": "other"})
        attempts: list[int] = []

        @outbox.handler("note.*", name="notes")
        def handle(event: Event) -> None:
            note(event.payload["n"])
            if event.payload["n"] == "other":
                return
            attempts.append(event.attempt)
            end(outbox.current().database, postgres_url)
            if then == "asks":
                note("never")
            if then == "raises":
                raise ValueError("its own")

        consume(make_consumer(max_deliveries=3), until=lambda: stream.parked() and stream.left() == 0)
        # One attempt may not be counted: as long as the consumer does not know when the server was started, only a
        # timeout's own code counts, which the client does not always get to see.
        assert sorted(set(attempts)) == [1, 2, 3]
        assert len(attempts) <= 4
        assert [entry[b"deliveries"] for entry in stream.parked()] == [b"3"]
        assert (notes(), len(dealt_with())) == (["other"], 1)

    def test_has_an_error_that_names_the_timeouts(
        self, box: Outbox, postgres_url: str, stream: Stream, make_consumer: MakeConsumer
    ) -> None:
        stream.add()
        outbox.handler("note.*", name="notes")(lambda event: outlast_the_timeout(box.database, postgres_url))
        consume(make_consumer(max_deliveries=1), until=stream.parked)
        error = stream.parked()[0][b"error"].decode()
        assert "notes: the database server ended the handler's session and keeps running" in error
        assert "idle_in_transaction_session_timeout" in error


@pytest.mark.usefixtures("box")
def test_a_connection_to_another_database_that_a_handler_loses_costs_nothing(
    stream: Stream, make_consumer: MakeConsumer
) -> None:
    stream.add()
    attempts: list[int] = []

    @outbox.handler("note.*")
    def handle(event: Event) -> None:
        attempts.append(event.attempt)
        if len(attempts) < 4:
            raise peewee.OperationalError(ConnectionError(), "the connection is lost")

    consume(make_consumer(max_deliveries=2), until=lambda: attempts and stream.left() == 0)
    assert (attempts, stream.parked()) == ([1, 1, 1, 1], [])


def test_a_server_that_was_restarted_or_is_unavailable_has_not_ended_a_session() -> None:
    with PostgresServer() as postgres:
        database: Any = open_database(postgres.create_database("restarted"))
        dialect = dialect_of(database, Tables())
        server, session, error = DatabaseServer(dialect), HandlerSession(dialect), peewee.OperationalError()
        with session.watched():
            pass
        assert [server.ended(session, error) for _ in range(3)] == [False, True, True]
        database.close_all()
        postgres.stop()
        assert not server.ended(session, error)
        postgres.start()
        assert [server.ended(session, error) for _ in range(3)] == [False, True, True]
        database.close_all()
