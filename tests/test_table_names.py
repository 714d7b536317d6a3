"""The tables' names: other names work everywhere, the default names never change, and `init` can print the SQL."""

import ast
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

import outbox
from outbox import InboxMessage, OutboxEvent, current_outbox
from outbox.admin import queries
from outbox.admin.doctor.run_checks import run_checks
from outbox.admin.metrics import families
from outbox.admin.overview import overview
from outbox.core import Outbox
from outbox.destinations.registry import Registry
from outbox.destinations.retirement import retire
from outbox.errors import Reject
from outbox.operations import actions
from outbox.operations.filters import Filter
from outbox.settings import Settings
from outbox.storage import schema
from outbox.storage.connect import open_database
from outbox.storage.schema import VERSIONS, Version
from outbox.table_names import KINDS, PREFIX_LENGTH, Tables
from outbox.telemetry import audit
from outbox.telemetry.audit import Operator
from tests.operations.changing import change_all, count_all
from tests.support.program import BIN, ROOT, run
from tests.support.table import becomes_true, on_postgres

NAMES: list[dict[str, str]] = [
    {"table_prefix": "billing_"},
    {"schema": "Shop"},
    {"schema": "shop", "table_prefix": "b_"},
]
# SQLite has no schemas.
CASES = [*(("postgres", names) for names in NAMES), ("sqlite", NAMES[0])]


def each_of(cases: list[tuple[str, dict[str, str]]]) -> pytest.MarkDecorator:
    ids = ["-".join([database, *names.values()]) for database, names in cases]
    return pytest.mark.parametrize(("url", "names"), cases, indirect=["url"], ids=ids)


@pytest.fixture
def opened(url: str) -> Iterator[Any]:
    """A database without any tables."""
    database: Any = open_database(url)
    yield database
    database.close_all()


@pytest.fixture
def make(opened: Any) -> Callable[..., Outbox]:
    """An outbox with tables of other names; beside it there is none whose tables could be used by mistake."""

    def made(versions: Sequence[Version] = VERSIONS, **names: str) -> Outbox:
        settings = Settings.load({}, dispatch="off", publish_seconds=0, backoff_base_seconds=0, **names)
        box = Outbox(settings, database=opened, registry=Registry())
        schema.upgrade(box.dialect, versions=versions)
        return box

    return made


def catalog(url: str, name: str | None = "public") -> list[tuple[Any, ...]]:
    """Return everything in a schema, or in an SQLite file, except the times in the history."""
    if urlsplit(url).scheme == "sqlite":
        database: Any = open_database(url)
        found = database.execute_sql("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY 1, 2").fetchall()
        database.close_all()
        return [tuple(" ".join(str(each).split()) for each in row) for row in found]
    statements = [
        """SELECT table_name, column_name, ordinal_position, data_type, character_maximum_length, is_nullable,
            column_default,
             is_identity, identity_generation FROM information_schema.columns WHERE table_schema = %s""",
        "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = %s",
        """SELECT conrelid::regclass::text, conname, contype::text, pg_get_constraintdef(oid) FROM pg_constraint
           WHERE connamespace = to_regnamespace(quote_ident(%s))""",
        """SELECT relname, relkind::text, reloptions::text FROM pg_class
           WHERE relnamespace = to_regnamespace(quote_ident(%s))""",
    ]
    with psycopg.connect(url) as connection:
        return [row for statement in statements for row in sorted(connection.execute(statement, (name,)), key=str)]


def close(box: Outbox) -> None:
    database: Any = box.database
    database.close_all()


def assert_the_doctor_accepts(box: Outbox) -> None:
    """The checks that look at the tables find nothing wrong."""
    names = ["schema", "inbox", "indexes", *(["vacuum"] if box.dialect.name == "postgres" else [])]
    found = {name: [finding for finding in run_checks(box) if finding.check == name] for name in names}
    assert {name: [finding.level for finding in findings] for name, findings in found.items()} == {
        name: ["ok"] for name in names
    }, found


def rows_of(box: Outbox) -> list[tuple[Any, ...]]:
    """The rows that making the tables leaves in them, without the times."""
    tables = box.dialect.tables
    statements = (
        f"SELECT version, what FROM {tables.history} ORDER BY version",  # noqa: S608  (our own names)
        f"SELECT version, name FROM {tables.control} ORDER BY name",  # noqa: S608
    )
    return [tuple(row) for statement in statements for row in box.dialect.run(statement).fetchall()]


# Other names


@each_of(CASES)
def test_all_that_an_outbox_does_is_done_in_tables_of_other_names(
    make: Callable[..., Outbox], names: dict[str, str]
) -> None:
    box = make(**names)
    fails = True

    @box.registry.handler("*")
    def handle(event: outbox.Event) -> None:
        if fails and event.event_type == "order.lost":
            raise Reject("gone")

    box.become_worker()
    first = box.emit("Order", 1, "order.placed")
    with pytest.raises(outbox.DuplicateEvent, match=str(first.id)):
        box.emit("Order", 1, "order.placed")
    assert box.emit("Order", 1, "order.placed", on_duplicate="ignore").id == first.id
    _, lost = box.emit_many([("Order", 2, "order.placed"), ("Order", 3, "order.lost")])
    assert box.process_pending_events() == {"processed": 3, "remaining": 0}
    failed = queries.find(box.dialect, lost.id)
    assert failed is not None
    assert failed.status == "failed"
    fails = False
    assert box.retry_failed_events() == 1
    assert box.drain() == 1
    assert change_all(box, actions.REPLAY, Filter(ids=(first.id,)), operator=Operator("ada")) == 1
    assert change_all(box, actions.fail_with("why not"), Filter(), operator=Operator("ada")) == 1
    assert count_all(box, actions.DELETE, Filter(event_type="order.lost")) == 1
    assert change_all(box, actions.DELETE, Filter(event_type="order.lost"), operator=Operator("ada")) == 1
    assert [entry.action for entry in audit.latest(box.dialect)] == ["delete", "fail", "replay"]
    assert queries.event_types(box.dialect) == ["order.placed"]
    (name,) = queries.destination_names(box.dialect, box.registry)
    (listed,) = queries.page(box.dialect, Filter(status="delivered")).events
    delivered = queries.find(box.dialect, listed.id)
    assert delivered is not None
    assert queries.delivered_to(box.dialect, delivered) == (name,)
    retire(box.dialect, name, retired_by=Operator("ada"), force=True)
    assert audit.latest(box.dialect)[0].action == "retire"
    assert len(queries.search(box.dialect, "Order:1")) == 1
    box.reporter.report_now()
    assert overview(box.dialect).counts["delivered"].number == 1
    assert [process.id for process in overview(box.dialect).processes] == [box.reporter.id]
    assert any(family.name == "outbox_emitted" for family in families(box))
    box.delete_old_records()
    with box.inbox.claim("7", "ledger") as new:
        assert new
    with box.inbox.claim("7", "ledger") as new:
        assert not new
    becomes_true(lambda: box.inbox.cleanup(0)["deleted"] == 1)  # once the clock has moved on
    assert box.cleanup_delivered_events(0)["deleted"] == 2
    assert_the_doctor_accepts(box)


@each_of(CASES)
def test_the_schema_and_the_prefix_are_in_the_name_of_all_that_is_made(
    make: Callable[..., Outbox], names: dict[str, str]
) -> None:
    box = make(**names)
    tables, prefix = box.dialect.tables, names.get("table_prefix", "outbox_")
    if box.dialect.name == "sqlite":
        rows = box.dialect.run("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall()
    else:
        rows = box.dialect.run(
            """SELECT relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
            WHERE nspname = %s UNION SELECT conname FROM pg_constraint AS c JOIN pg_namespace AS n
            ON n.oid = c.connamespace WHERE nspname = %s""",
            (names.get("schema", "public"),) * 2,
        ).fetchall()
    found = {name for (name,) in rows}
    assert {tables.name("event"), tables.name("inbox"), tables.name("history")} <= found
    if prefix != "outbox_":
        assert [name for name in found if prefix not in name] == []


@each_of(CASES)
def test_what_the_doctor_advises_mends_tables_of_other_names(
    make: Callable[..., Outbox], names: dict[str, str]
) -> None:
    box = make(**names)
    index = "{index_prefix}pending_next".format_map(box.dialect.tables.placeholders)
    box.dialect.run(f"DROP INDEX {box.dialect.tables.in_schema(index)}")
    (found,) = [finding for finding in run_checks(box) if finding.check == "indexes"]
    assert found.what.startswith(f"The index {index} of {box.dialect.tables.event} is missing: every claim reads")
    assert found.advice is not None
    box.dialect.run(found.advice.split("`")[1])
    assert_the_doctor_accepts(box)


def test_two_outboxes_share_a_schema_and_nothing_else(make: Callable[..., Outbox]) -> None:
    one, other, plain = make(table_prefix="one_"), make(table_prefix="other_"), make()
    one.emit("Order", 1, "order.placed")
    event = other.emit("Order", 1, "order.placed")
    for box in (one, other):
        assert box.emit("Order", 1, "order.placed", on_duplicate="ignore").created_at is not None
        assert queries.count(box.dialect, Filter()).number == 1
    assert queries.find(one.dialect, event.id) is None
    assert queries.count(plain.dialect, Filter()).number == 0
    assert plain.process_pending_events()["processed"] == 0
    with one.inbox.claim("7", "ledger") as first, other.inbox.claim("7", "ledger") as also_first:
        assert first
        assert also_first


def test_the_models_read_the_tables_that_configure_was_told(opened: Any, make: Callable[..., Outbox]) -> None:
    make(table_prefix="mine_")
    try:
        box = outbox.configure(database=opened, dispatch="off", publish_seconds=0, table_prefix="mine_")
        event = outbox.emit("Order", 1, "order.placed")
        with outbox.inbox.claim("7", "ledger"):
            pass
        assert [each.id for each in OutboxEvent.select()] == [event.id]
        assert OutboxEvent.update(tenant_id="t").where(OutboxEvent.id == event.id).execute() == 1
        assert OutboxEvent.get_by_id(event.id).tenant_id == "t"
        assert InboxMessage.select().count() == 1
        assert '"mine_event"' in OutboxEvent.select().sql()[0]
        box.database.close()
    finally:
        outbox.configure(database=opened, dispatch="off", publish_seconds=0)
        current_outbox.forget()
    assert '"outbox_event"' in OutboxEvent.select().sql()[0]


@on_postgres
def test_the_models_read_the_schema_that_configure_was_told(opened: Any, make: Callable[..., Outbox]) -> None:
    make(schema="Shop")
    try:
        outbox.configure(database=opened, dispatch="off", publish_seconds=0, schema="Shop")
        event = outbox.emit("Order", 1, "order.placed")
        assert [each.id for each in OutboxEvent.select()] == [event.id]
    finally:
        outbox.configure(database=opened, dispatch="off", publish_seconds=0)
        current_outbox.forget()


# Errors


def test_a_missing_table_is_named_with_its_place(make: Callable[..., Outbox]) -> None:
    box = make(table_prefix="one_")
    other = Outbox(Settings.load({}, dispatch="off", table_prefix="other_"), database=box.database)
    for call in (other.check_schema, lambda: other.emit("Order", 1, "order.placed")):
        with pytest.raises(outbox.SchemaError, match=r"no tables in .* \(tables other_…\) yet: run `outbox init`"):
            call()
    with pytest.raises(outbox.SchemaError, match="inbox has no table in"), other.inbox.claim("7", "ledger"):
        pass


@on_postgres
def test_a_missing_schema_is_named_with_its_place(opened: Any) -> None:
    box = Outbox(Settings.load({}, dispatch="off", schema="shop"), database=opened)
    for call in (box.check_schema, lambda: box.emit("Order", 1, "order.placed")):
        with pytest.raises(outbox.SchemaError, match=r"no tables in .* \(schema shop\) yet: run `outbox init`"):
            call()


@on_postgres
def test_a_role_that_may_not_make_the_schema_is_told_what_to_run(opened: Any, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        with suppress(psycopg.errors.DuplicateObject):
            connection.execute("CREATE ROLE outbox_test_nobody LOGIN")
        connection.execute("CREATE SCHEMA mine AUTHORIZATION outbox_test_nobody")
        try:
            opened.execute_sql("SET ROLE outbox_test_nobody")
            box = Outbox(Settings.load({}, dispatch="off", schema="shop"), database=opened)
            with pytest.raises(outbox.SchemaError, match='Run `CREATE SCHEMA "shop" AUTHORIZATION'):
                box.create_tables()
            # Where the schema is there, the right to create schemas is not needed.
            mine = Outbox(Settings.load({}, dispatch="off", schema="mine"), database=opened)
            mine.create_tables()
            mine.check_schema()
        finally:
            opened.close_all()
            connection.execute("DROP OWNED BY outbox_test_nobody")
            connection.execute("DROP ROLE outbox_test_nobody")


def test_sqlite_has_no_schemas(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'a.db'}")
    with pytest.raises(outbox.SettingsError, match=r"OUTBOX_SCHEMA is 'shop', but .* is SQLite.*OUTBOX_TABLE_PREFIX"):
        Outbox(Settings.load({}, dispatch="off", schema="shop"), database=database)


# The names themselves


def test_no_name_is_cut_off_by_postgresql() -> None:
    tables = Tables("s" * 63, "p" * PREFIX_LENGTH)
    statements = " ".join(schema.definition("postgres", tables))
    names = re.findall(r"\w+", statements)
    assert max(map(len, names)) == 63
    assert max(len(tables.name(kind)) for kind in KINDS) <= 63


def test_the_default_names_are_those_that_databases_have() -> None:
    tables = Tables()
    assert {kind: tables.qualified(kind) for kind in KINDS} == {
        "event": "outbox_event",
        "inbox": "inbox",
        "process": "outbox_process",
        "total": "outbox_total",
        "minute": "outbox_minute",
        "audit": "outbox_audit",
        "history": "outbox_schema",
        "destination": "outbox_destination",
        "control": "outbox_control",
        "audience": "outbox_audience",
        "periodic": "outbox_periodic",
        "waiting": "outbox_waiting",
        "audit_batch": "outbox_audit_batch",
        "attempt": "outbox_attempt",
    }
    assert all(getattr(tables, kind) == tables.qualified(kind) for kind in KINDS)
    assert Tables(prefix="b_").inbox == "b_inbox"
    assert Tables("shop").inbox == '"shop".inbox'


NAMED = re.compile(r"\b(?:FROM|INTO|UPDATE|TABLE|EXISTS|JOIN|ON) (?:outbox_[a-z]+|inbox)\b")
ON_A_DATABASE = re.compile(r"\.(?:execute|first|count|get|scalar)\([\w.]*database\b")


@pytest.mark.parametrize("path", sorted((ROOT / "outbox").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_statement_names_a_table_by_itself(path: Path) -> None:
    text = path.read_text()
    assert NAMED.findall(text) == []
    if path.name != "dialect.py":
        assert ON_A_DATABASE.findall(text) == []  # Dialect.select and Dialect.count know the tables


# SQL for migrations


def run_sql(url: str, text: str) -> None:
    """As `psql` or `sqlite3` would: the text as it is."""
    if urlsplit(url).scheme == "sqlite":
        database: Any = open_database(url)
        database.connection().executescript(text)
        database.close_all()
        return
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(text)


def printed(url: str, *options: str, **names: Any) -> str:
    done = run(BIN / "outbox", "init", "--sql", *options, database_url=url, **names)
    assert done.returncode == 0, done.stdout
    return done.stdout


@each_of([("postgres", {}), ("sqlite", {}), *CASES])
def test_what_init_prints_makes_what_init_makes(
    make: Callable[..., Outbox], names: dict[str, str], url: str, tmp_path: Path
) -> None:
    box = make(**names)
    expected = catalog(url, names.get("schema", "public"))
    history = rows_of(box)
    close(box)
    if urlsplit(url).scheme == "sqlite":
        url = f"sqlite:///{tmp_path / 'other.db'}"
        box = Outbox(box.settings, database=open_database(url))
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
            connection.execute('DROP SCHEMA IF EXISTS shop CASCADE; DROP SCHEMA IF EXISTS "Shop" CASCADE')
    run_sql(url, printed(url, **names))
    assert catalog(url, names.get("schema", "public")) == expected
    assert rows_of(box) == history
    box.check_schema()
    assert box.upgrade_schema() == []
    assert_the_doctor_accepts(box)
    close(box)


def test_what_init_prints_from_a_version_on_completes_that_version(make: Callable[..., Outbox], url: str) -> None:
    box = make(VERSIONS[:1])
    with pytest.raises(outbox.SchemaError, match="at version 1"):
        box.check_schema()
    close(box)
    run_sql(url, printed(url, "--from", "1"))
    box.check_schema()
    assert rows_of(box)[: len(VERSIONS)] == [(version.number, version.what) for version in VERSIONS]


def test_what_init_prints_is_done_whole_or_not_at_all(opened: Any, url: str) -> None:
    opened.execute_sql("CREATE TABLE outbox_audit (id integer)")
    before = catalog(url)
    opened.close_all()
    with pytest.raises((psycopg.Error, sqlite3.Error), match="outbox_audit"):
        run_sql(url, printed(url))
    assert catalog(url) == before


def test_printing_needs_no_connection(tmp_path: Path) -> None:
    text = printed("postgresql://app:hush@nowhere.invalid/shop")
    assert text.startswith("BEGIN;\n")
    assert text.endswith("COMMIT;\n")
    assert "hush" not in text
    printed(f"sqlite:///{tmp_path / 'none.db'}")
    assert list(tmp_path.iterdir()) == []


def test_a_tool_that_has_its_own_transaction_gets_the_statements_alone() -> None:
    text = printed("postgresql://nowhere.invalid/shop", "--no-transaction")
    assert "BEGIN" not in text
    assert "COMMIT" not in text


def test_the_printed_statements_can_be_split_at_the_ends_of_lines(opened: Any, url: str) -> None:
    for statement in printed(url, "--no-transaction").split(";\n"):
        if statement:
            opened.execute_sql(statement)
    box = Outbox(Settings.load({}, dispatch="off"), database=opened)
    box.check_schema()
    assert rows_of(box)[: len(VERSIONS)] == [(version.number, version.what) for version in VERSIONS]


def test_the_page_about_migrations_drops_every_table() -> None:
    page = (ROOT / "docs" / "how-to" / "migrations.md").read_text()
    made = set(re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", " ".join(schema.definition("postgres", Tables()))))
    lists = re.findall(r"for table in (\(.*?\)):", page, re.DOTALL)
    assert len(lists) == 2
    assert [{f"outbox_{name}" for name in ast.literal_eval(each)} | {"inbox"} for each in lists] == [made] * 2


def test_after_the_newest_version_there_is_nothing_to_print() -> None:
    assert printed("postgresql://nowhere.invalid/shop", "--from", str(VERSIONS[-1].number)) == ""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--sql", "--from", "99"], "There is no version 99 of the outbox's tables"),
        (["--from", "1"], "--from and --no-transaction need --sql"),
        (["--no-transaction"], "--from and --no-transaction need --sql"),
    ],
)
def test_init_refuses_what_makes_no_sense(options: list[str], told: str) -> None:
    done = run(BIN / "outbox", "init", *options, database_url="postgresql://nowhere.invalid/shop")
    assert done.returncode == 2
    assert told in done.stdout


def test_a_wrong_name_is_refused_at_the_start() -> None:
    done = run(BIN / "outbox", "status", table_prefix="Billing-", database_url="postgresql://nowhere.invalid/shop")
    assert done.returncode == 2
    assert "OUTBOX_TABLE_PREFIX must be at most 30 lower-case letters" in done.stdout
