"""What a reader of PostgreSQL's log gets, as docs/how-to/debezium.md sets it up: read from a real slot."""

import random
import re
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

import outbox
from outbox.core import Outbox
from tests.support.program import ROOT
from tests.support.servers import PATIENCE_SECONDS, PostgresServer
from tests.support.table import deliver_all, statuses

PAGE = (ROOT / "docs" / "how-to" / "debezium.md").read_text()
READ = """SELECT data FROM pg_logical_slot_get_binary_changes(
    'outbox', NULL, NULL, 'proto_version', '1', 'publication_names', 'outbox')"""
# The first version whose publications may have a WHERE.
WITH_WHERE = 150_000


@dataclass
class Log:
    """What the output plugin pgoutput has written: the rows, in order, and the kinds of all messages."""

    rows: list[dict[str, str | None]] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    columns: list[str] = field(default_factory=list)

    @property
    def ids(self) -> list[str | None]:
        return [row["id"] for row in self.rows]


class Message:
    """Reads the parts of one message of PostgreSQL's logical replication protocol."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def number(self, format: str) -> int:
        (value,) = struct.unpack_from(f">{format}", self._data, self._position)
        self._position += struct.calcsize(f">{format}")
        return int(value)

    def text(self, length: int | None = None) -> str:
        """Return so many bytes as text, or all up to the next NUL."""
        end = self._data.index(b"\0", self._position) if length is None else self._position + length
        value = self._data[self._position : end].decode()
        self._position = end + (length is None)
        return value


def read_log(url: str) -> Log:
    log = Log()
    with psycopg.connect(url) as connection:
        messages = connection.execute(READ).fetchall()
    for (data,) in messages:
        message = Message(data)
        kind = message.text(1)
        log.kinds.add(kind)
        if kind == "R":
            log.columns = list(columns_in(message))
        elif kind == "I":
            message.number("I"), message.text(1)
            log.rows.append(dict(zip(log.columns, values_in(message), strict=True)))
    return log


def columns_in(message: Message) -> Iterator[str]:
    message.number("I"), message.text(), message.text(), message.text(1)
    for _ in range(message.number("H")):
        message.number("B")
        yield message.text()
        message.number("I"), message.number("i")


def values_in(message: Message) -> Iterator[str | None]:
    for _ in range(message.number("H")):
        yield message.text(message.number("I")) if message.text(1) == "t" else None


@pytest.fixture(scope="module")
def logical_url() -> Iterator[str]:
    """A server of its own: the log of the others is not kept for logical decoding."""
    with PostgresServer(wal_level="logical") as server:
        yield server.create_database("logical")


@pytest.fixture
def url(logical_url: str) -> str:
    return logical_url


@pytest.fixture(autouse=True)
def slot(box: Outbox, url: str) -> Iterator[None]:
    """Create the publication of the page, and a slot."""
    (publication,) = re.findall(r"^CREATE PUBLICATION .*?;$", PAGE, re.MULTILINE | re.DOTALL)
    with psycopg.connect(url) as connection:
        if connection.info.server_version < WITH_WHERE:
            publication = re.sub(r"WHERE \(.*?\)", "", publication)
        connection.execute(publication)
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('outbox', 'pgoutput')")
    yield
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_drop_replication_slot('outbox')")
        connection.execute("DROP PUBLICATION outbox")


def emit_transactions(box: Outbox, thread: int) -> list[str]:
    """Run transactions, some of which are rolled back whole or in part; return the committed ids, in order."""
    chance, committed = random.Random(thread), list[str]()  # noqa: S311  (the same transactions each time)
    for number in range(40):
        with box.dialect.connection(), box.database.atomic() as transaction:
            ids = [emit(thread, number) for _ in range(chance.randint(1, 3))]
            with box.database.atomic() as savepoint:
                inner = emit(thread, number)
                if chance.random() < 0.5:
                    savepoint.rollback()
                else:
                    ids.append(inner)
            if chance.random() < 0.3:
                transaction.rollback()
            else:
                committed += ids
    return committed


def emit(thread: int, number: int) -> str:
    event = outbox.emit(
        "Order", f"{thread}/{number}", "order.placed", {"zeros": 1.50, "n": number}, idempotency_key=outbox.UNIQUE
    )
    return str(event.id)


def test_it_holds_every_committed_event_once_and_no_other_row_or_change(box: Outbox, url: str) -> None:
    outbox.ignore("order.*")
    stopped = threading.Event()

    def deliver() -> None:
        while not stopped.is_set():
            box.process_pending_events(20)

    with ThreadPoolExecutor(5) as threads:
        delivering = threads.submit(deliver)
        try:
            committed = list(threads.map(emit_transactions, [box] * 4, range(4)))
        finally:
            stopped.set()
        delivering.result(PATIENCE_SECONDS)
    deliver_all(box)
    assert statuses() == {"delivered": sum(map(len, committed))}
    assert box.cleanup_delivered_events(0)["deleted"] > 0
    log = read_log(url)
    assert log.kinds <= {"B", "R", "I", "C"}
    assert sorted(map(str, log.ids)) == sorted(id for ids in committed for id in ids)
    for thread, ids in enumerate(committed):
        assert [row["id"] for row in log.rows if str(row["aggregate_id"]).startswith(f"{thread}/")] == ids


def test_its_order_is_that_of_the_commits(box: Outbox, url: str) -> None:
    emitted, others_committed = threading.Event(), threading.Event()

    def commit_last() -> str:
        with box.dialect.connection(), box.database.atomic():
            id = emit(1, 0)
            emitted.set()
            assert others_committed.wait(PATIENCE_SECONDS)
        return id

    with ThreadPoolExecutor(1) as threads:
        last = threads.submit(commit_last)
        assert emitted.wait(PATIENCE_SECONDS)
        with box.dialect.connection():
            first = emit(2, 0)
        others_committed.set()
        assert read_log_after(last, url) == [first, last.result()]


def read_log_after(future: Any, url: str) -> list[str | None]:
    future.result(PATIENCE_SECONDS)
    return read_log(url).ids


def test_it_has_the_columns_that_the_page_names_for_the_router(box: Outbox, url: str) -> None:
    with box.dialect.connection():
        emit(1, 1)
        outbox.emit("User", 1, "user.created")
    log = read_log(url)
    placement = re.findall(r"additional\.placement=(.+)$", PAGE, re.MULTILINE)[0].split(",")
    single = re.findall(r"(?:table\.field\.event\.\w+|route\.by\.field)=(\w+)$", PAGE, re.MULTILINE)
    assert len(single) == 4
    assert {each.partition(":")[0] for each in placement} | set(single) <= set(log.columns)
    (heartbeat,) = re.findall(r"^heartbeat\.action\.query=(.+)$", PAGE, re.MULTILINE)
    with psycopg.connect(url) as connection:
        connection.execute(heartbeat)
    assert read_log(url).rows == []
    row = log.rows[0]
    assert (row["payload"], row["aggregate_type"], row["kind"]) == ('{"zeros":1.5,"n":1}', "Order", "event")
