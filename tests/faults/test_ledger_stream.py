"""Thousands of entries of a ledger go through a stream to two consumers, while workers and consumers are killed: every
balance is right to the cent.

OUTBOX_TEST_LEDGER_ENTRIES=10000 makes it a longer run, with so many entries.
"""

import os
import random
import re
import secrets
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import psycopg
import pytest
import redis

from outbox.core import Outbox
from outbox.events.new_event import NewEvent
from outbox.settings import Settings
from outbox.storage.connect import open_database
from tests.support.processes import BIN, MakeStage, Program, Stage, close_all, stands_still
from tests.support.servers import Postgres, Redis, send, wait_until

ENTRIES = int(os.environ.get("OUTBOX_TEST_LEDGER_ENTRIES", "4000"))
TRANSACTION = 100
ACCOUNTS = 50
KILLS = 3  # of workers, and as many of consumers
GROUP = "ledger"
# No entry can come so often here: none may be parked.
OPTIONS = ("--group", GROUP, "--idle-seconds", "1", "--max-deliveries", "100")
SKIPPED = re.compile(r"Skipped: balance has processed message (\S+) before")
# Where the two applications are told.
STREAM, DATABASE = "OUTBOX_TEST_STREAM", "OUTBOX_TEST_LEDGER_DATABASE"


class Ledger:
    """The consumers' own database: inbox and balances."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute("CREATE TABLE account (id integer PRIMARY KEY, balance numeric(14, 2) NOT NULL)")
        self.connection.execute("INSERT INTO account SELECT n, 0 FROM generate_series(1, %s) n", (ACCOUNTS,))
        box = Outbox(Settings(dispatch="off"), database=open_database(url))
        box.inbox.create_tables()
        close_all(box)

    def processed(self) -> int:
        return int(self._rows("SELECT count(*) FROM inbox")[0][0])

    def processed_among(self, ids: set[str]) -> set[str]:
        """Those of them that have had their effect."""
        return {id for (id,) in self._rows("SELECT message_id FROM inbox WHERE message_id = ANY(%s)", list(ids))}

    def balances(self) -> dict[int, Decimal]:
        return dict(self._rows("SELECT id, balance FROM account"))

    def _rows(self, query: str, *parameters: Any) -> list[Any]:
        return self.connection.execute(query, parameters).fetchall()


class Show:
    """The two services, and what happens to them."""

    def __init__(self, stage: Stage, ledger: Ledger, client: Any, chance: random.Random) -> None:
        self.stage, self.ledger, self.client, self.chance = stage, ledger, client, chance
        self.stream = stage.environment[STREAM]
        self.workers = [self._worker() for _ in range(2)]
        self.consumers = [self._consumer() for _ in range(2)]
        # How far things are when the next one is killed.
        self.worker_deaths = sorted(chance.sample(range(ENTRIES // 20, ENTRIES * 4 // 5), KILLS))
        self.consumer_deaths = sorted(chance.sample(range(ENTRIES // 20, ENTRIES * 7 // 10), KILLS))
        # What was committed and not acknowledged when its consumer was killed: that comes again, for sure.
        self.owed: set[str] = set()

    def _worker(self) -> Program:
        return self.stage.start("worker", BIN / "dramatiq", "jobs", "tests.apps.ledger_bus", "-p", "1", "-t", "2")

    def _consumer(self) -> Program:
        return self.stage.start("consumer", BIN / "outbox", "consume", "bus", "tests.apps.ledger_consumer", *OPTIONS)

    def goes_on_until_all_deaths(self) -> bool:
        if self.worker_deaths and self.client.xlen(self.stream) >= self.worker_deaths[0]:
            self._kill_a_worker()
        if self.consumer_deaths and self.ledger.processed() >= self.consumer_deaths[0]:
            self._kill_a_consumer()
        return not self.worker_deaths and not self.consumer_deaths

    def _kill_a_worker(self) -> None:
        doomed = self.chance.choice(self.workers)
        doomed.kill()
        self.workers[self.workers.index(doomed)] = self._worker()
        del self.worker_deaths[0]

    def _kill_a_consumer(self) -> None:
        """One that is in the middle of a batch, if there is: some of it is committed, and not acknowledged."""
        doomed = self.chance.choice(self.consumers)
        owed = self._owed_by(doomed)
        if not owed:
            send(signal.SIGCONT, [doomed.pid])
            return
        doomed.kill()
        self.owed |= owed
        self.consumers[self.consumers.index(doomed)] = self._consumer()
        del self.consumer_deaths[0]

    def _owed_by(self, consumer: Program) -> set[str]:
        """Stop it, and see which of the events that it was given have had their effect."""
        send(signal.SIGSTOP, [consumer.pid])
        assert wait_until(lambda: stands_still(consumer.pid))
        given = set()
        for row in self.client.xpending_range(self.stream, GROUP, "-", "+", 1_000):
            if f"-{consumer.pid}-" in row["consumer"].decode():
                ((_, fields),) = self.client.xrange(self.stream, row["message_id"], row["message_id"])
                given.add(fields[b"id"].decode())
        return self.ledger.processed_among(given)

    def is_over(self) -> bool:
        return self.ledger.processed() == ENTRIES and self.client.xpending(self.stream, GROUP)["pending"] == 0

    def skipped(self) -> list[str]:
        """By all consumers, dead and alive."""
        logs = [program.said() for program in self.stage.programs if "consumer" in program.output.name]
        return [id for log in logs for id in SKIPPED.findall(log)]


def entries(chance: random.Random) -> list[NewEvent]:
    """For each an account, and an amount to the cent."""
    return [
        NewEvent(
            "Account",
            chance.randint(1, ACCOUNTS),
            "ledger.entered",
            {"amount": f"{Decimal(chance.randint(-50_000, 100_000)) / 100:.2f}"},
            idempotency_key=f"entry-{n}",
        )
        for n in range(ENTRIES)
    ]


def sums(events: list[NewEvent]) -> dict[int, Decimal]:
    balances: dict[int, Decimal] = dict.fromkeys(range(1, ACCOUNTS + 1), Decimal(0))
    for event in events:
        assert isinstance(event.payload, dict)
        balances[int(str(event.aggregate_id))] += Decimal(event.payload["amount"])
    return balances


@contextmanager
def emitting(stage: Stage, events: list[NewEvent]) -> Iterator[None]:
    """The service emits, transaction after transaction, for the time of the block."""
    box = stage.make_box()

    def emit() -> None:
        for start in range(0, ENTRIES, TRANSACTION):
            with box.dialect.connection(), box.database.atomic():
                box.emit_many(events[start : start + TRANSACTION])

    with ThreadPoolExecutor(1) as thread:
        emitted = thread.submit(emit)
        yield
        emitted.result()
    close_all(box)


@pytest.fixture
def ledger(postgres_server: Postgres) -> Iterator[Ledger]:
    ledger = Ledger(postgres_server.create_database("ledger"))
    yield ledger
    ledger.connection.close()


@pytest.fixture
def show(make_stage: MakeStage, ledger: Ledger, redis_server: Redis) -> Iterator[Show]:
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201 - shown if the test fails
    stage = make_stage(lease_seconds=1)
    stage.environment |= {STREAM: f"{stage.settings.namespace}:ledger", DATABASE: ledger.url}
    with redis.Redis.from_url(redis_server.url) as client:
        yield Show(stage, ledger, client, random.Random(seed))  # noqa: S311 - nothing secret


def test_every_balance_is_right_to_the_cent_whoever_is_killed(
    show: Show, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    stage, events = show.stage, entries(show.chance)
    stage.scheduler()
    with emitting(stage, events):
        stage.wait_for(show.goes_on_until_all_deaths, "workers and consumers are killed")
    stage.wait_for(lambda: stage.statuses() == {"delivered": ENTRIES}, "every event is delivered")
    stage.wait_for(show.is_over, "every entry is processed and acknowledged")
    for consumer in show.consumers:
        consumer.signal(signal.SIGTERM)
        assert consumer.wait() == 0

    assert ledger.balances() == sums(events)
    assert not show.client.exists(f"{show.stream}.dead")
    skipped = show.skipped()
    assert show.owed
    assert show.owed <= set(skipped)
    with capsys.disabled():
        twice = show.client.xlen(show.stream) - ENTRIES
        print(  # noqa: T201 - the measure of what was shown
            f"\n{ENTRIES} entries, {KILLS} workers and {KILLS} consumers killed: {twice} came twice, "
            f"{len(skipped)} duplicates were skipped"
        )
