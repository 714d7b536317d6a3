"""Fixtures for every test: real servers, and an outbox on each database that we support."""

import os
import shutil
import signal
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import peewee
import psycopg
import pytest
from psycopg.sql import SQL, Identifier

import outbox
from outbox import current_outbox
from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage.connect import open_database
from tests.support.fast import is_fast
from tests.support.servers import Postgres, Redis, ServerError, find_postgres, find_redis

# Folders whose tests need what a bare machine lacks. Only those who name one get it: `dev.py test --browser`.
APART = ("browser", "faketime", "pgbouncer", "rabbitmq", "sentinel", "netns")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a folder that stands apart, unless an argument names it."""
    folder = collection_path.name
    if collection_path.parent != Path(__file__).parent or folder not in APART:
        return None
    return None if any(folder in argument for argument in config.args) else True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only tests that start no process and cause no fault")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that `--fast` does not ask for."""
    if config.getoption("--fast"):
        left_out = [item for item in items if not is_fast(item, Path(__file__).parent)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def pytest_configure() -> None:
    """Hear SIGINT although a shell that runs this in the background has it ignored: children would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart() -> None:
    """Dramatiq's workers need POSIX semaphores: a bare chroot has the folder for them, but for root alone."""
    shared = Path("/dev/shm")  # noqa: S108  (asked about, not used)
    if shared.is_dir() and not os.access(shared, os.W_OK):
        raise pytest.UsageError(f"{shared} can't be written to; as root: mount -t tmpfs -o mode=1777 tmpfs {shared}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tests also log what no encoding knows, such as lone surrogates; reports travel between processes."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    try:
        with find_postgres() as server:
            yield server
    except ServerError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    try:
        with find_redis() as server:
            yield server
    except ServerError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def _postgres_database(postgres_server: Postgres) -> str:
    return postgres_server.create_database("outbox_tests")


@pytest.fixture
def postgres_url(_postgres_database: str) -> str:
    """An empty PostgreSQL database."""
    with psycopg.connect(_postgres_database, autocommit=True) as connection:
        schemas = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)'"
        for (name,) in connection.execute(schemas).fetchall():
            connection.execute(SQL("DROP SCHEMA {} CASCADE").format(Identifier(name)))
        connection.execute("CREATE SCHEMA public")
    return _postgres_database


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'outbox.sqlite3'}"


@pytest.fixture(params=["postgres", "sqlite"])
def url(request: pytest.FixtureRequest) -> str:
    """Every test that asks for it, or for `database` or `configure`, runs once on each database."""
    return str(request.getfixturevalue(f"{request.param}_url"))


class Note(peewee.Model):
    """The application's own table."""

    text = peewee.TextField()

    class Meta:
        table_name = "note"


def create_tables(database: Any) -> None:
    """Create the application's table and the outbox's tables."""
    with database.bind_ctx([Note]):
        database.create_tables([Note])
    Outbox(Settings(dispatch="off"), database=database).create_tables()
    database.close()


@pytest.fixture(scope="session")
def _sqlite_file_with_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hundreds of tests begin with these tables on SQLite: to copy a file takes a fraction of creating them."""
    file = tmp_path_factory.mktemp("tables") / "outbox.sqlite3"
    opened: Any = open_database(f"sqlite:///{file}")
    create_tables(opened)
    opened.close_all()
    return file


@pytest.fixture
def database(url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The application's database, with its own table `note` and the outbox's tables."""
    if not is_postgres(url):
        shutil.copyfile(request.getfixturevalue("_sqlite_file_with_tables"), urlsplit(url).path)
    opened: Any = open_database(url)
    if is_postgres(url):
        create_tables(opened)
    Note.bind(opened)
    yield opened
    opened.close_all()


class Configure(Protocol):
    def __call__(self, **settings: Any) -> Outbox: ...


@pytest.fixture
def configure(database: peewee.Database) -> Iterator[Configure]:
    """Configure the package on the test's database: `box = configure(dispatch="inline")`.

    Unless the test says otherwise nothing follows a commit, nothing is published, and backoffs are exact.
    """

    def configured(**settings: Any) -> Outbox:
        defaults: dict[str, Any] = {"dispatch": "off", "backoff_jitter": False, "publish_seconds": 0}
        return outbox.configure(database=database, **defaults | settings)

    yield configured
    for thread in threading.enumerate():
        if thread.name.startswith(("outbox-to-", "outbox-closing")):
            thread.join()  # it may be using the database that is about to be closed
    if current_outbox.is_configured():
        outbox.current().notifier.flush()
    current_outbox.registry.clear()
    current_outbox.forget()


@pytest.fixture
def box(configure: Configure) -> Outbox:
    """An outbox in which nothing happens by itself."""
    return configure()


def is_postgres(url: str) -> bool:
    return urlsplit(url).scheme == "postgresql"
