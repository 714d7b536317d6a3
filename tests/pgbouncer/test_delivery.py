"""Behind PgBouncer in transaction mode, with statements that are not prepared, all is as without it."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import peewee
import psycopg
import pytest
from playhouse.pool import PooledPostgresqlDatabase

import outbox
from outbox.core import Outbox
from outbox.settings import Settings
from tests.support.processes import MakeStage, Stage
from tests.support.program import BIN, run

THREADS = 8
EMITS = 60  # per thread
UNPREPARED = "?prepared_statements=false"


@pytest.fixture
def pooled_stage(make_stage: MakeStage, pooled_url: str) -> Stage:
    return make_stage(database_url=pooled_url + UNPREPARED)


def emit_one(box: Outbox, **payload: Any) -> UUID:
    """Commit an event, together with a statement of the application's own."""
    with box.dialect.connection(), box.database.atomic():
        box.database.execute_sql("SELECT count(*) FROM outbox_event WHERE status = %s", ("failed",))
        return box.emit("Thing", "1", "test.emitted", {"do": "pass"} | payload, idempotency_key=outbox.UNIQUE).id


def emit_in_turn(stage: Stage) -> list[UUID]:
    """Commit events on a connection of this thread's own; every tenth fails at first."""
    return [
        emit_one(stage.box, do="fail", times=1) if number % 10 == 0 else emit_one(stage.box) for number in range(EMITS)
    ]


def test_of_hundreds_of_emits_none_fails_and_each_event_is_delivered_once(pooled_stage: Stage) -> None:
    stage = pooled_stage
    stage.scheduler()
    stage.worker(processes=2, threads=4)
    with ThreadPoolExecutor(THREADS) as threads:
        emitted = [threads.submit(emit_in_turn, stage) for _ in range(THREADS)]
        ids = [id for each in emitted for id in each.result()]
    stage.wait_until_all("delivered")
    assert len(ids) == THREADS * EMITS
    assert Counter(stage.ended()) == Counter(ids)
    again = THREADS * EMITS // 10
    assert Counter(attempts for (attempts,) in stage.rows("attempts")) == {1: len(ids) - again, 2: again}


@pytest.fixture
def two_clients(pooled_url: str, request: pytest.FixtureRequest) -> Iterator[list[Outbox]]:
    """Two processes' view of the database, with statements prepared or not."""
    settings = Settings(database_url=pooled_url, prepared_statements=request.param, dispatch="off")
    boxes = [Outbox(settings), Outbox(settings)]
    boxes[0].create_tables()
    yield boxes
    for box in boxes:
        box.database.close_all()  # type: ignore[attr-defined]


def emit_from_each(clients: list[Outbox]) -> None:
    for box in clients:
        for _ in range(10):
            emit_one(box)


@pytest.mark.parametrize("two_clients", [True], indirect=True)
def test_with_prepared_statements_an_emit_fails_inside_the_callers_transaction(two_clients: list[Outbox]) -> None:
    with pytest.raises(peewee.ProgrammingError, match="prepared statement"):
        emit_from_each(two_clients)


@pytest.mark.parametrize("two_clients", [False], indirect=True)
def test_without_them_clients_that_share_a_server_connection_get_along(two_clients: list[Outbox]) -> None:
    emit_from_each(two_clients)
    assert two_clients[0].dialect.run("SELECT count(*) FROM outbox_event").fetchone() == (20,)


def test_an_application_that_opens_its_database_itself_passes_prepare_threshold(pooled_url: str) -> None:
    given = psycopg.conninfo.conninfo_to_dict(pooled_url)
    database = PooledPostgresqlDatabase(str(given.pop("dbname")), prefer_psycopg3=True, prepare_threshold=None, **given)
    box = Outbox(Settings(dispatch="off"), database=database)
    box.create_tables()
    with ThreadPoolExecutor(THREADS) as threads:
        ids = [each.result() for each in [threads.submit(emit_one, box) for _ in range(100)]]
    called: list[UUID] = []
    box.registry.handler("test.emitted", name="called")(lambda event: called.append(event.id))
    box.drain()
    assert Counter(called) == Counter(ids)
    database.close_all()


@pytest.mark.parametrize(
    "command",
    [["status"], ["list"], ["fail", "--all", "--yes"], ["cleanup"], ["deliver", "tests.apps.ledger"]],
    ids=" ".join,
)
def test_the_commands_work(pooled_stage: Stage, command: list[str]) -> None:
    pooled_stage.emit(20)
    done = run(
        BIN / "outbox",
        *command,
        database_url=pooled_stage.settings.database_url,
        redis_url=pooled_stage.redis_url,
        test_ledger=pooled_stage.ledger,
    )
    assert done.returncode == 0, done.stdout


def test_options_in_the_address_are_refused_by_it(pooled_url: str) -> None:
    """So the library sets what it needs inside its statements, and the documentation says so."""
    with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter: options"):
        psycopg.connect(f"{pooled_url}?options=-c%20work_mem%3D5MB")
