"""Entries of a ledger go by webhook to a receiver with a database of its own, while workers and the receiver are
killed: every balance is right to the cent.
"""

import random
import re
import secrets
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import outbox
from outbox import webhooks
from outbox.events.new_event import NewEvent
from outbox.storage.connect import open_database
from tests.support.processes import BIN, MakeStage, Program, Stage
from tests.support.servers import Postgres, free_port
from tests.support.serving import serve

# A development server takes a few hundred requests a second. What shows something are the deaths, not the entries.
ENTRIES = 480
TRANSACTION = 40
ACCOUNTS = 20
# What happens to whom, in an order that chance decides.
WORKER, RECEIVER, BEFORE_IT_ANSWERS = "worker", "receiver", "receiver, after its commit"
DEATHS = (WORKER,) * 3 + (RECEIVER,) * 2 + (BEFORE_IT_ANSWERS,) * 2
SKIPPED = re.compile(r"Skipped: ledger has processed message (\S+) before")


class Show:
    """The emitter's workers, the receiver, and what happens to them."""

    def __init__(self, stage: Stage, server: str, app: str, ledger_url: str, chance: random.Random) -> None:
        self.stage, self.chance = stage, chance
        self._server, self._app, self._url = server, app, ledger_url
        self._port = free_port()
        self._crash = stage.folder / "crash"
        stage.environment |= {
            "LEDGER_SECRET": webhooks.new_secret(),
            "OUTBOX_TEST_URL": f"http://127.0.0.1:{self._port}/events",
            "OUTBOX_TEST_CRASH": str(self._crash),
        }
        self.database: Any = open_database(ledger_url)
        self.receivers = [self._receiver()]
        self.workers = [self._worker() for _ in range(2)]
        stage.scheduler()

    def _receiver(self) -> Program:
        return serve(self.stage, self._server, self._app, port=self._port, OUTBOX_DATABASE_URL=self._url)

    def _worker(self) -> Program:
        return self.stage.start("worker", BIN / "dramatiq", "jobs", "tests.apps.ledger_webhook", "-p", "1", "-t", "2")

    def let_die(self, who: str) -> None:
        """At once, or with the next entry: there must be one."""
        if who == WORKER:
            doomed = self.chance.choice(self.workers)
            doomed.kill()
            self.workers[self.workers.index(doomed)] = self._worker()
        elif who == RECEIVER:
            self.receivers[-1].kill()
        else:
            self._crash.touch()

    def raise_the_dead(self, who: str) -> None:
        if who == WORKER:
            return
        self.stage.wait_for(lambda: not self.receivers[-1].running, "the receiver is dead")
        self.receivers.append(self._receiver())

    def entered(self) -> list[str]:
        """The ids of all entries that have had their effect."""
        return [id for (id,) in self._rows("SELECT message_id FROM inbox")]

    def wait_until_entered(self, number: int) -> None:
        self.stage.wait_for(lambda: len(self.entered()) >= number, f"{number} entries have had their effect")

    def balances(self) -> dict[str, int]:
        return dict(self._rows("SELECT name, cents FROM ledger_account"))

    def _rows(self, query: str) -> list[Any]:
        with self.database.connection_context():
            return list(self.database.execute_sql(query).fetchall())

    def skipped(self) -> list[str]:
        """By all receivers, dead and alive."""
        return [id for receiver in self.receivers for id in SKIPPED.findall(receiver.said())]


class Emitter:
    """Commits entries, and knows what they add up to."""

    def __init__(self, stage: Stage, chance: random.Random) -> None:
        self._stage, self._chance = stage, chance
        self.committed: list[str] = []
        self.sums: Counter[str] = Counter()

    def emit(self, transactions: int = 1) -> None:
        """So many transactions of entries; and as many that are rolled back."""
        for _ in range(transactions):
            events = [self._entry() for _ in range(TRANSACTION)]
            with self._stage.box.dialect.connection():
                with self._stage.box.database.atomic() as transaction:
                    self._stage.box.emit_many(events)
                    transaction.rollback()
                self.committed += [str(event.id) for event in self._stage.box.emit_many(events)]
            for event in events:
                assert isinstance(event.payload, dict)
                self.sums[str(event.aggregate_id)] += event.payload["cents"]

    def _entry(self) -> NewEvent:
        account, cents = f"account-{self._chance.randrange(ACCOUNTS)}", self._chance.randint(1, 10_000)
        # However often a worker dies with it in its hands, it is not given up.
        return NewEvent(
            "Account", account, "entry.made", {"cents": cents}, idempotency_key=outbox.UNIQUE, max_attempts=100
        )


@pytest.fixture(params=["postgres", "sqlite"])
def ledger_url(request: pytest.FixtureRequest, postgres_server: Postgres, tmp_path: Path) -> str:
    if request.param == "postgres":
        return postgres_server.create_database("ledger")
    return f"sqlite:///{tmp_path / 'ledger.sqlite3'}"


@pytest.mark.parametrize(
    ("ledger_url", "server", "app"),
    [("postgres", "flask", "tests.apps.mortal_flask"), ("sqlite", "uvicorn", "tests.apps.mortal_starlette")],
    indirect=["ledger_url"],
    ids=["Flask and PostgreSQL", "Starlette and SQLite"],
)
def test_every_balance_is_right_to_the_cent_whoever_is_killed(
    make_stage: MakeStage, ledger_url: str, server: str, app: str
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201 - shown if the test fails
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    stage = make_stage(lease_seconds=1, backoff_cap_seconds=1)
    show, emitter = Show(stage, server, app, ledger_url, chance), Emitter(stage, chance)
    emitter.emit(ENTRIES // TRANSACTION - len(DEATHS))
    for number, who in enumerate(chance.sample(DEATHS, len(DEATHS))):
        show.wait_until_entered(number * TRANSACTION + chance.randrange(TRANSACTION))
        show.let_die(who)
        emitter.emit()
        show.raise_the_dead(who)
    stage.wait_until_all("delivered")

    assert len(emitter.committed) == ENTRIES
    assert sorted(show.entered()) == sorted(emitter.committed)
    assert show.balances() == emitter.sums
    skipped = show.skipped()
    print(f"{ENTRIES} entries, {len(DEATHS)} deaths, {len(skipped)} duplicates skipped")  # noqa: T201 - likewise
    assert len(skipped) >= DEATHS.count(BEFORE_IT_ANSWERS)
    assert set(skipped) <= set(emitter.committed)
    show.database.close_all()
