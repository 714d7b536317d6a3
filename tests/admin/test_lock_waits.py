"""Queues behind locks of PostgreSQL: what the tools still say, and whom they name."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest

from outbox.admin.doctor.check import OK, PROBLEM, WARNING
from outbox.admin.lock_waits import read_roots
from outbox.admin.metrics import Collector, expose
from outbox.admin.overview import overview
from outbox.admin.verdict import find, verdict_on
from outbox.core import Outbox
from tests.admin.doctor.findings import advice_of, finding_of, findings_of
from tests.support.table import becomes_true, emit, on_postgres, sessions_waiting

OWN = "dramatiq-outbox"


def _waits(url: str, number: int) -> bool:
    return sessions_waiting(url) == number


@contextmanager
def queue(url: str, table: str, first: str, *others: str) -> Iterator[int]:
    """A transaction that is idle, and others that wait for its table; yield the first one's process id."""
    idle = psycopg.connect(url, application_name=first)
    waiting = [psycopg.connect(url, application_name=name, autocommit=True) for name in others]
    with ThreadPoolExecutor(len(others)) as executor:
        try:
            idle.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE")
            for number, connection in enumerate(waiting, start=1):
                # A change of the table, and those who come after it.
                executor.submit(connection.execute, f"TRUNCATE {table}" if number == 1 else f"SELECT FROM {table}")
                becomes_true(partial(_waits, url, number))
            yield idle.info.backend_pid
        finally:
            for connection in waiting:
                connection.cancel()
            idle.close()
    for connection in waiting:
        connection.close()


@on_postgres
def test_the_session_at_the_head_of_a_queue_is_named_and_no_other(box: Outbox, url: str) -> None:
    assert read_roots(box.dialect) == ()
    with queue(url, "note", "psql", "migration", "reader") as pid:
        (root,) = read_roots(box.dialect)
        assert (root.pid, root.application, root.state, root.waiting) == (pid, "psql", "idle in transaction", 2)
        found = finding_of(box, "locks", lock_wait_seconds=0)
        assert found.level == WARNING  # none of the outbox's own waits
        assert f"Process {pid} of PostgreSQL (psql, idle in transaction for" in found.what
        assert f"`SELECT pg_terminate_backend({pid})`" in advice_of(found)
        assert finding_of(box, "locks", lock_wait_seconds=3600).level == OK
        transactions = findings_of(box, "transactions", open_seconds=0)
        assert [name for name in ("psql", "migration", "reader") if name in repr(transactions)] == ["psql"]


@on_postgres
def test_a_process_of_the_outbox_is_never_to_be_ended(box: Outbox, url: str) -> None:
    with queue(url, "note", OWN, OWN) as pid:
        locks = finding_of(box, "locks", lock_wait_seconds=0)
        transactions = finding_of(box, "transactions", open_seconds=0)
        assert locks.level == PROBLEM  # another one of the outbox's waits
        for found in (locks, transactions):
            assert f"rocess {pid} " in found.what
            assert "terminate" not in advice_of(found)


@on_postgres
def test_what_is_known_is_said_while_the_events_are_locked(
    box: Outbox, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit(2)
    monkeypatch.setattr("outbox.admin.metrics.STATEMENT_SECONDS", 0.2)
    with queue(url, "outbox_event", "psql", "migration") as pid:
        view = overview(box.dialect, seconds=0.2)
        assert (view.events_unread, [root.pid for root in view.roots]) == (0.2, [pid])
        assert {str(count) for count in view.counts.values()} == {"0+"}
        said = verdict_on(find(box, view)).sentence
        assert f"process {pid} of PostgreSQL (psql, idle in transaction" in said
        assert "due" not in said
        body = expose(Collector(box)).decode()
        assert [line for line in body.splitlines() if not line.startswith("#")] == ["outbox_up 0.0"]
    assert overview(box.dialect, seconds=0.2).counts["pending"].number == 2


@on_postgres
def test_a_limit_on_statements_ends_with_its_block_and_the_shorter_one_holds(box: Outbox) -> None:
    def limit() -> str:
        return str(box.dialect.run("SELECT current_setting('statement_timeout')").fetchone()[0])

    with box.dialect.connection(), box.database.atomic():
        with box.dialect.bounded(5):
            assert limit() == "5s"
            with box.dialect.bounded(10):
                assert limit() == "5s"
            with box.dialect.bounded(1):
                assert limit() == "1s"
            assert limit() == "5s"
        assert limit() == "0"
