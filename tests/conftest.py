"""Fixtures for every test: real servers, and an outbox on each database that we support."""

import gc
import os
import shutil
import signal
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import hypothesis
import peewee
import pytest

import outbox
from outbox import current_outbox
from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage.connect import open_database
from outbox.storage.models import Waiting
from outbox.storage.operator_models import Attempt, Audit, AuditBatch, Minute, Periodic, Process, Total
from tests.support.fast import is_fast, is_left_out
from tests.support.outbox_parts import waiting_for_handlers
from tests.support.postgres_database import PostgresDatabase
from tests.support.servers import Postgres, Redis, ServerError, find_postgres, find_redis, wait_until

# Folders whose tests need what a bare machine lacks. Only those who name one get it: `dev.py test --browser`.
APART = ("browser", "faketime", "nats", "pgbouncer", "rabbitmq", "sentinel", "netns")

# Folders with tests that take longer than others: at the end most of pytest's processes would wait for them.
LONGEST = frozenset({"benchmarks", "chaos", "website"})

# Models that the library never binds: it names the database with each query.
OPERATOR_MODELS = (Attempt, Audit, AuditBatch, Minute, Periodic, Process, Total, Waiting)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a folder that stands apart, unless an argument names it, and what `--fast` leaves out whole."""
    folder = collection_path.name
    if config.getoption("--fast") and is_left_out(collection_path, Path(__file__).parent):
        return True
    if collection_path.parent != Path(__file__).parent or folder not in APART:
        return None
    return None if any(folder in argument for argument in config.args) else True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only tests that start no process and cause no fault")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest tests, and leave out those that `--fast` does not ask for."""
    items.sort(key=lambda item: LONGEST.isdisjoint(item.path.parts))
    if config.getoption("--fast"):
        left_out = [item for item in items if not is_fast(item, Path(__file__).parent)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from looking through the thousands of tests again and again, then and later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_configure() -> None:
    """Let no test depend on the machine's speed, or on how the tests were started.

    Hypothesis would fail a test whose example took longer than 200 ms, or whose examples took long to make.
    """
    usual = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.register_profile("usual", usual)
    hypothesis.settings.load_profile("usual")
    heed_signals()


def heed_signals() -> None:
    """Don't ignore SIGINT and SIGHUP as `nohup … &` makes this process do: the programs under test would inherit it."""
    for signum, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, default)


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
def _postgres_database(postgres_server: Postgres) -> Iterator[PostgresDatabase]:
    database = PostgresDatabase(postgres_server.create_database("outbox_tests"))
    yield database
    database.close()


@pytest.fixture
def new_tables() -> None:
    """Ask for tables that no other test uses: PostgreSQL counts dead rows for a table, and remembers what is in it."""


@pytest.fixture
def postgres_url(_postgres_database: PostgresDatabase, request: pytest.FixtureRequest) -> Iterator[str]:
    """A PostgreSQL database: empty, unless `database` is about to have its tables there."""
    callspec = getattr(request.node, "callspec", None)
    is_elsewhere = callspec is not None and callspec.params.get("url") == "sqlite"
    wants_new_tables = "new_tables" in request.fixturenames
    if "database" not in request.fixturenames or wants_new_tables or is_elsewhere:
        _postgres_database.clear()
    yield _postgres_database.url
    if wants_new_tables:
        _postgres_database.clear()


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
def sqlite_file_with_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
        shutil.copyfile(request.getfixturevalue("sqlite_file_with_tables"), urlsplit(url).path)
    opened: Any = open_database(url)
    if is_postgres(url):
        shared = request.getfixturevalue("_postgres_database")
        if url == shared.url:
            shared.renew(lambda: create_tables(opened))
        else:  # a module with a server of its own
            create_tables(opened)
    Note.bind(opened)
    yield opened
    # What a test has bound to its database must not stay so: on the next one the model would build the wrong SQL.
    for model in OPERATOR_MODELS:
        model.bind(None)  # type: ignore[arg-type]  # unbinds; the stubs leave it out
    opened.close_all()


class Configure(Protocol):
    def __call__(self, **settings: Any) -> Outbox: ...


@pytest.fixture
def usual_slices() -> None:
    """Ask for drains that go on without a slow handler, and batches that give back what they have not begun, as usual.

    They do so after a tenth of a second and after a second: on a busy machine also where all handlers are quick.
    """


@pytest.fixture
def configure(database: peewee.Database, request: pytest.FixtureRequest) -> Iterator[Configure]:
    """Configure the package on the test's database: `box = configure(dispatch="inline")`.

    Unless the test says otherwise nothing follows a commit, nothing is published, backoffs are exact, and deliveries
    wait for their handlers, however slow the machine is.
    """

    def configured(**settings: Any) -> Outbox:
        defaults: dict[str, Any] = {"dispatch": "off", "backoff_jitter": False, "publish_seconds": 0}
        box = outbox.configure(database=database, **defaults | settings)
        if "usual_slices" not in request.fixturenames:
            waiting_for_handlers(box)
        return box

    yield configured
    # They may be using the database that is about to be closed, and start others.
    while threads := [each for each in threading.enumerate() if each.name.startswith(("outbox-to-", "outbox-closing"))]:
        for thread in threads:
            join(thread)
    if current_outbox.is_configured():
        outbox.current().notifier.flush()
    current_outbox.registry.clear()
    current_outbox.forget()


@pytest.fixture
def box(configure: Configure) -> Outbox:
    """An outbox in which nothing happens by itself."""
    return configure()


def join(thread: threading.Thread) -> None:
    """Wait for a thread's end, also of one that is just being started."""
    assert wait_until(lambda: thread.ident is not None)
    thread.join()


def is_postgres(url: str) -> bool:
    return urlsplit(url).scheme == "postgresql"
