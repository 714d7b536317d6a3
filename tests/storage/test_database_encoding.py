"""A database or a connection that can't carry every text is refused before anything is stored or sent."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from playhouse.pool import PooledPostgresqlDatabase

import outbox
from outbox.admin.doctor.check import PROBLEM
from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage.connect import open_database
from outbox.storage.postgres import Postgres as PostgresDialect
from tests.admin.doctor.findings import advice_of, finding_of
from tests.support.program import BIN, run
from tests.support.servers import Postgres, Redis

Open = Callable[..., Outbox]

ENCODINGS = ("SQL_ASCII", "LATIN1")
SERVER = "The encoding of {place} is {encoding}, and the outbox needs UTF8: it could not store"
CLIENT = "The connection to {place} uses the encoding {encoding}, and the outbox needs UTF8: it could not read"
# A client encoding that a connection of the application's own may have.
CLIENTS = ("SQL_ASCII", "LATIN1")


def place_of(url: str) -> str:
    return f"postgresql://{url.rpartition('@')[2]}"


@pytest.fixture(params=ENCODINGS)
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def other_url(postgres_server: Postgres, encoding: str) -> str:
    """An empty database in another encoding."""
    return postgres_server.create_database("encoding", encoding=encoding)


@pytest.fixture
def boxes() -> Iterator[Open]:
    """Make an outbox on a database in which nothing happens by itself."""
    opened: list[Any] = []

    def make(database: Any) -> Outbox:
        opened.append(database)
        return Outbox(Settings(dispatch="off"), database=database)

    yield make
    for database in opened:
        database.close_all()


def own_database(url: str, **parameters: Any) -> Any:
    """A database as an application opens it."""
    given = psycopg.conninfo.conninfo_to_dict(url)
    return PooledPostgresqlDatabase(str(given.pop("dbname")), prefer_psycopg3=True, **given, **parameters)


def test_init_refuses_the_database_in_one_line_and_makes_nothing(other_url: str, encoding: str) -> None:
    done = run(BIN / "outbox", "init", database_url=other_url)
    assert done.returncode != 0
    (line,) = done.stdout.splitlines()
    assert line.startswith("outbox: " + SERVER.format(place=place_of(other_url), encoding=encoding))
    with psycopg.connect(other_url, client_encoding="UTF8") as connection:
        assert connection.execute("SELECT to_regclass('outbox_schema')").fetchone() == (None,)


@pytest.fixture
def with_tables(other_url: str, boxes: Open, monkeypatch: pytest.MonkeyPatch) -> Outbox:
    """Tables in such a database, as an earlier version of the library made them."""
    box = boxes(open_database(other_url))
    with monkeypatch.context() as patched:
        patched.setattr(PostgresDialect, "check_encoding", lambda dialect: None)
        box.create_tables()
    return box


@pytest.mark.usefixtures("with_tables")
def test_a_worker_refuses_the_database_in_one_line(
    other_url: str, encoding: str, redis_server: Redis, tmp_path: Path
) -> None:
    worker = (BIN / "dramatiq", "jobs", "tests.apps.ledger", "-p", "1", "-t", "1")
    done = run(*worker, database_url=other_url, redis_url=redis_server.url, test_ledger=tmp_path / "ledger")
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("outbox: ")]
    assert SERVER.format(place=place_of(other_url), encoding=encoding) in line


def test_the_doctor_finds_the_database_a_problem_and_says_what_to_do(
    other_url: str, encoding: str, boxes: Open
) -> None:
    found = finding_of(boxes(open_database(other_url)), "database")
    assert found.level == PROBLEM
    assert found.what.startswith(SERVER.format(place=place_of(other_url), encoding=encoding))
    assert "CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8'" in advice_of(found)


def test_nothing_is_claimed_where_its_outcome_could_not_be_stored(with_tables: Outbox) -> None:
    box = with_tables
    called: list[outbox.Event] = []
    box.registry.handler("order.placed", name="called")(called.append)
    box.emit("Order", 1, "order.placed")
    with pytest.raises(outbox.SchemaError, match="the outbox needs UTF8"):
        box.process_pending_events()
    assert called == []
    assert box.dialect.run("SELECT attempts FROM outbox_event").fetchall() == [(0,)]


def test_an_inbox_alone_refuses_the_database_as_well(other_url: str, boxes: Open) -> None:
    box = boxes(open_database(other_url))
    with pytest.raises(outbox.SchemaError, match="the outbox needs UTF8"):
        box.inbox.create_tables()
    assert not box.dialect.has_table("inbox")


# The application's own connection to a database that is in UTF-8


@pytest.mark.parametrize("encoding", CLIENTS)
def test_a_connection_in_another_encoding_is_refused_wherever_it_is_used(
    postgres_url: str, encoding: str, boxes: Open
) -> None:
    boxes(open_database(postgres_url)).create_tables()
    box = boxes(own_database(postgres_url, client_encoding=encoding))
    said = CLIENT.format(place=place_of(postgres_url), encoding=encoding)
    for attempt in (box.create_tables, box.check_schema, box.process_pending_events):
        with pytest.raises(outbox.SchemaError) as raised:
            attempt()
        assert str(raised.value).startswith(said)
    found = finding_of(box, "database")
    assert (found.level, found.what.startswith(said)) == (PROBLEM, True)
    assert "client_encoding" in advice_of(found)


def test_a_connection_of_ours_is_in_utf8_whatever_the_environment_says(
    postgres_url: str, boxes: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    boxes(open_database(postgres_url)).create_tables()
    with pytest.raises(outbox.SchemaError, match="PGCLIENTENCODING"):
        boxes(own_database(postgres_url)).create_tables()
