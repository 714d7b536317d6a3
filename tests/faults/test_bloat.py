"""Churn: events come and go, round after round, and neither the table nor what a claim costs grows with that."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import outbox
from outbox.core import Outbox
from outbox.events.new_event import NewEvent
from outbox.settings import Settings
from outbox.storage import statements
from outbox.storage.connect import open_database
from outbox.table_names import Tables
from tests.support.processes import close_all
from tests.support.servers import PostgresServer, wait_until

ROUNDS, EARLY, LATE = 8, 3, 2
EVENTS = 1_000
# Vacuum as eager as it gets: what takes hours in use takes seconds here.
EAGER: dict[str, Any] = {
    "autovacuum": "on",
    "autovacuum_naptime": "1s",
    "autovacuum_vacuum_threshold": "50",
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_cost_delay": "0",
}
CLEAN = """SELECT count(*) FROM pg_stat_user_tables
    WHERE relname = 'outbox_event' AND n_tup_ins >= {emitted} AND n_dead_tup <= 100"""


class Churn:
    """A table through which events go."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._box = Outbox(Settings(dispatch="off"), database=open_database(url))
        self._box.registry.handler("*", name="nobody")(lambda event: None)
        self._box.create_tables()
        self._emitted = 0

    def round(self) -> None:
        """Emit, deliver, delete; a few stay due."""
        with self._box.dialect.connection():
            self._emit(EVENTS)
            while self._box.process_pending_events(500)["remaining"]:
                pass
            self._box.cleanup_delivered_events(retention_hours=0)
            self._emit(50)

    def _emit(self, number: int) -> None:
        self._emitted += number
        self._box.emit_many(
            NewEvent("Thing", n, "test.emitted", {"n": n}, idempotency_key=outbox.UNIQUE) for n in range(number)
        )

    def wait_for_vacuum(self) -> None:
        """Until it has dealt with all that has gone through so far."""
        close_all(self._box)  # what a connection has done is counted when it ends, at the latest
        dealt_with = CLEAN.format(emitted=self._emitted)
        assert wait_until(lambda: bool(self._ask(dealt_with)))

    def size(self) -> int:
        return self._ask("SELECT pg_total_relation_size('outbox_event')")

    def cost_of_a_claim(self) -> int:
        """In pages that it looks at, wherever they are: not in time."""
        with psycopg.connect(self._url, cursor_factory=psycopg.ClientCursor) as connection:
            explain: Any = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statements.postgres(Tables()).claim}"
            lease = "00000000-0000-0000-0000-000000000001"
            ((found,),) = connection.execute(explain, ("-infinity", True, 100, lease, 30.0)).fetchall()
            connection.rollback()
        plan = (found if isinstance(found, list) else json.loads(found))[0]["Plan"]
        return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])

    def _ask(self, query: Any) -> int:
        with psycopg.connect(self._url, autocommit=True) as connection:
            ((answer,),) = connection.execute(query).fetchall()
            return int(answer)

    def close(self) -> None:
        close_all(self._box)


@pytest.fixture
def churn() -> Iterator[Churn]:
    with PostgresServer(**EAGER) as server:
        churn = Churn(server.create_database("churn"))
        yield churn
        churn.close()


def test_size_and_the_cost_of_a_claim_reach_a_plateau(churn: Churn) -> None:
    sizes, costs = [], []
    for _ in range(ROUNDS):
        churn.round()
        sizes.append(churn.size())
        costs.append(churn.cost_of_a_claim())
        churn.wait_for_vacuum()
    # Without a plateau the last ones would be twice the early ones, and more.
    assert max(sizes[-LATE:]) <= 1.4 * max(sizes[:EARLY]), sizes
    assert max(costs[-LATE:]) <= 1.4 * max(costs[:EARLY]), costs
