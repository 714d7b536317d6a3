"""The tables: created once however many processes start, upgraded in order, and with the indexes that claims need."""

import logging
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import peewee
import psycopg
import pytest

import outbox
from outbox import NewEvent, OutboxEvent
from outbox.core import Outbox
from outbox.delivery.claim import claim
from outbox.settings import Settings
from outbox.storage import schema
from outbox.storage.connect import open_database
from outbox.storage.peewee_database import place_of
from outbox.storage.schema import VERSIONS, Version
from tests.support.crowd import at_once, processes_at_once
from tests.support.processes import ROOT
from tests.support.program import BIN, run
from tests.support.servers import wait_until
from tests.support.table import on_postgres

HISTORY = [
    (1, "the events"),
    (2, "the inbox"),
    (3, "for operators"),
    (4, "the destinations"),
    (5, "the periodic jobs"),
    (6, "order per key"),
    (7, "evidence in the audit log"),
    (8, "control of deliveries, attempts and erasure"),
]
NEWEST = len(HISTORY)

MUTABLE = ("status", "attempts", "lease_id", "lease_until", "updated_at")

NEXT = Version(
    NEWEST + 1,
    "a colour",
    postgres=("ALTER TABLE outbox_event ADD COLUMN colour text",),
    sqlite=("ALTER TABLE outbox_event ADD COLUMN colour TEXT",),
)
BROKEN = Version(NEWEST + 1, "a mistake", postgres=("CREATE TABLE oops (id int)", "NONSENSE"), sqlite=("NONSENSE",))


@pytest.fixture
def empty(url: str) -> Iterator[Outbox]:
    """An outbox on a database without tables."""
    database: Any = open_database(url)
    yield Outbox(Settings(dispatch="off"), database=database)
    database.close_all()


def history(box: Outbox) -> list[tuple[int, str]]:
    return [tuple(row) for row in box.dialect.run("SELECT version, what FROM outbox_schema ORDER BY 1").fetchall()]


def columns(box: Outbox) -> set[str]:
    return {column.name for column in box.database.get_columns("outbox_event")}


# Making them


def test_tables_are_made_once_and_then_left_alone(empty: Outbox) -> None:
    empty.create_tables()
    event = empty.emit("Note", 1, "note.written")
    empty.create_tables()
    assert history(empty) == HISTORY
    assert empty.emit("Note", 1, "note.written", on_duplicate="ignore").id == event.id


def test_upgrading_says_what_it_applied(empty: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="outbox")
    assert schema.upgrade(empty.dialect) == list(VERSIONS)
    assert schema.upgrade(empty.dialect) == []
    assert caplog.messages == [f"outbox schema: version {number} applied ({what})" for number, what in HISTORY]


def test_making_tables_leaves_no_connection_and_no_transaction_open(empty: Outbox) -> None:
    empty.create_tables()
    assert empty.database.is_closed()


def test_tables_can_be_made_inside_the_applications_own_transaction(empty: Outbox) -> None:
    with empty.database.atomic() as transaction:
        empty.create_tables()
        empty.emit("Note", 1, "note.written")
        transaction.rollback()
    with pytest.raises(outbox.SchemaError):
        empty.check_schema()


MAKING = """
outbox.create_tables()
with outbox.current().database.atomic():
    outbox.emit("Note", 1, "note.written", idempotency_key=outbox.UNIQUE)
"""


def test_eight_processes_at_once_make_the_tables_together(empty: Outbox, url: str) -> None:
    assert processes_at_once(8, MAKING, database_url=url, dispatch="off") == [""] * 8
    assert history(empty) == HISTORY
    assert empty.process_pending_events() == {"processed": 8, "remaining": 0}


def test_outbox_init_makes_the_tables(empty: Outbox, url: str) -> None:
    first = run(BIN / "outbox", "init", database_url=url)
    ready = f"The tables are ready in {place_of(empty.database)}\n"
    applied = "".join(f"applied version {number} ({what})\n" for number, what in HISTORY)
    assert (first.returncode, first.stdout) == (0, applied + ready)
    empty.check_schema()
    second = run(BIN / "outbox", "init", database_url=url)
    assert (second.returncode, second.stdout) == (0, ready)


def test_outbox_init_names_the_place_without_a_secret(empty: Outbox, url: str) -> None:
    shown = place_of(empty.database)
    user_and_password = urlsplit(url).netloc.rpartition("@")[0]
    assert urlsplit(shown).path == urlsplit(url).path
    assert "@" not in shown
    assert not user_and_password or user_and_password not in shown


# Upgrading them


def test_an_upgrade_adds_what_is_missing_and_keeps_what_is_there(empty: Outbox) -> None:
    empty.create_tables()
    event = empty.emit("Note", 1, "note.written")
    newer = (*VERSIONS, NEXT)
    with pytest.raises(
        outbox.SchemaError, match=rf"are at version {NEWEST}, and this library needs {NEWEST + 1}: run `outbox init`"
    ):
        schema.check(empty.dialect, newer)
    schema.upgrade(empty.dialect, versions=newer)
    schema.check(empty.dialect, newer)
    assert history(empty) == [*HISTORY, (NEWEST + 1, "a colour")]
    assert "colour" in columns(empty)
    assert empty.emit("Note", 1, "note.written", on_duplicate="ignore").id == event.id


def test_an_older_library_works_on_newer_tables(empty: Outbox) -> None:
    schema.upgrade(empty.dialect, versions=(*VERSIONS, NEXT))
    empty.create_tables()
    empty.check_schema()
    empty.emit("Note", 1, "note.written")
    assert history(empty) == [*HISTORY, (NEWEST + 1, "a colour")]


def create_version_1(box: Outbox) -> None:
    """Create the tables as they were before there was an inbox."""
    schema.upgrade(box.dialect, versions=VERSIONS[:1])


def test_version_1_is_upgraded_with_its_events_in_it(empty: Outbox) -> None:
    create_version_1(empty)
    event = empty.emit("Note", 1, "note.written", {"text": "Grüße"})
    with pytest.raises(
        outbox.SchemaError, match=rf"are at version 1, and this library needs {NEWEST}: run `outbox init`"
    ):
        empty.check_schema()
    empty.create_tables()
    empty.check_schema()
    assert history(empty) == HISTORY
    assert empty.emit("Note", 1, "note.written", on_duplicate="ignore").id == event.id
    with empty.inbox.claim(event.id, "reader") as first:
        assert first
    assert empty.process_pending_events() == {"processed": 1, "remaining": 0}


def test_version_1_works_without_the_inbox_which_says_what_to_run(empty: Outbox) -> None:
    create_version_1(empty)
    with empty.database.atomic():
        with pytest.raises(outbox.SchemaError, match="run `outbox init`"), empty.inbox.claim("1", "reader"):
            pass
        empty.emit("Note", 1, "note.written")
    with pytest.raises(outbox.SchemaError, match="run `outbox init`"):
        empty.process_pending_events()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_events_are_stored_in_older_tables_and_what_needs_newer_ones_says_what_to_run(
    empty: Outbox, version: int
) -> None:
    schema.upgrade(empty.dialect, versions=VERSIONS[:version])
    empty.emit("Note", 1, "note.written")
    empty.emit("Note", 2, "note.written", deliver_after=timedelta(hours=1))
    empty.emit_many([NewEvent("Note", number, "note.written") for number in (3, 4)])
    assert empty.dialect.run("SELECT count(*) FROM outbox_event").fetchone() == (4,)
    with pytest.raises(outbox.SchemaError, match="run `outbox init`"):
        empty.process_pending_events()
    empty.create_tables()
    assert [row.kind for row in OutboxEvent.select().execute(empty.database)] == ["event"] * 4


@on_postgres
def test_version_4_rewrites_no_table_and_waits_for_no_long_transaction(
    empty: Outbox, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema.upgrade(empty.dialect, versions=VERSIONS[:3])
    event = empty.emit("Note", 1, "note.written")
    file = "SELECT pg_relation_filenode('outbox_event')"
    before = empty.dialect.run(file).fetchone()
    monkeypatch.setattr(empty.dialect, "SCHEMA_LOCK_SECONDS", 0.1)
    with psycopg.connect(postgres_url) as reader:
        reader.execute("SELECT count(*) FROM outbox_event")
        with pytest.raises(outbox.SchemaError, match=r"Version 4 .* could not be applied: .*lock timeout"):
            empty.create_tables()
    empty.create_tables()
    assert empty.dialect.run(file).fetchone() == before
    row = OutboxEvent.select().where(OutboxEvent.id == event.id).get(empty.database)
    assert (row.kind, row.subject, row.audience) == ("event", None, None)


@on_postgres
def test_the_page_about_upgrading_makes_what_version_6_would_make(empty: Outbox, postgres_url: str) -> None:
    schema.upgrade(empty.dialect, versions=VERSIONS[:5])
    page = (ROOT / "docs" / "how-to" / "upgrading.md").read_text()
    made = re.findall(r"```sql\n(ALTER TABLE outbox_event.*?)```", page, re.DOTALL)[0]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for statement in made.split(";"):
            connection.execute(statement)
        created = connection.execute("SELECT pg_get_indexdef('idx_outbox_ordering'::regclass)").fetchone()
        empty.create_tables()
        connection.execute("DROP INDEX idx_outbox_ordering")
        connection.execute(VERSIONS[5].statements("postgres", empty.dialect.tables)[1])
        assert connection.execute("SELECT pg_get_indexdef('idx_outbox_ordering'::regclass)").fetchone() == created


@on_postgres
def test_version_8_rewrites_no_table_and_finds_what_the_page_about_upgrading_makes(
    empty: Outbox, postgres_url: str
) -> None:
    schema.upgrade(empty.dialect, versions=VERSIONS[:7])
    empty.emit("Note", 1, "note.written")
    files = "SELECT pg_relation_filenode('outbox_event'), pg_relation_filenode('outbox_audit')"
    before = empty.dialect.run(files).fetchone()
    page = (ROOT / "docs" / "how-to" / "upgrading.md").read_text()
    made = re.findall(r"```sql\n(ALTER TABLE outbox_event.*?)```", page, re.DOTALL)[1]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for statement in made.split(";"):
            connection.execute(statement)
        indexes = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'outbox_event' ORDER BY 1"
        by_hand = connection.execute(indexes).fetchall()
        empty.create_tables()
        assert connection.execute(indexes).fetchall() == by_hand
        connection.execute("DROP INDEX idx_outbox_subject, idx_outbox_tenant_id, idx_outbox_correlation_id")
        for statement in VERSIONS[7].statements("postgres", empty.dialect.tables):
            if "CREATE INDEX IF NOT EXISTS" in statement:
                connection.execute(statement)
        assert connection.execute(indexes).fetchall() == by_hand
    assert empty.dialect.run(files).fetchone() == before


def test_outbox_init_upgrades_version_1(empty: Outbox, url: str) -> None:
    create_version_1(empty)
    done = run(BIN / "outbox", "init", database_url=url)
    assert done.stdout.splitlines()[:2] == ["applied version 2 (the inbox)", "applied version 3 (for operators)"]
    empty.check_schema()


@pytest.mark.parametrize("start", [0, 1, NEWEST], ids=["from nothing", "from version 1", "from the newest"])
def test_threads_that_upgrade_at_once_apply_each_version_once(empty: Outbox, start: int) -> None:
    if start:
        create_version_1(empty)
    if start > 1:
        empty.create_tables()
    versions = (*VERSIONS, NEXT)
    results = at_once(empty.database, [lambda: schema.upgrade(empty.dialect, versions=versions)] * 8)
    assert [result for result in results if result != []] == [list(versions[start:])]
    assert history(empty) == [*HISTORY, (NEWEST + 1, "a colour")]


def test_an_upgrade_that_fails_says_which_and_leaves_nothing_half_done(empty: Outbox) -> None:
    empty.create_tables()
    with pytest.raises(
        outbox.SchemaError, match=rf"Version {NEWEST + 1} of the outbox's tables \(a mistake\) could not be applied"
    ):
        schema.upgrade(empty.dialect, versions=(*VERSIONS, BROKEN))
    assert history(empty) == HISTORY
    assert not empty.database.table_exists("oops")


# Missing them


def test_without_tables_the_check_says_what_to_run(empty: Outbox) -> None:
    empty.database.connect()  # SQLite makes the file
    empty.database.close()
    with pytest.raises(
        outbox.SchemaError, match=r"no tables in \w+://\S* yet: run `outbox init` with OUTBOX_DATABASE_URL"
    ):
        empty.check_schema()


def test_without_tables_everything_says_what_to_run(empty: Outbox) -> None:
    calls: list[Callable[[], object]] = [
        lambda: empty.emit("Note", 1, "note.written"),
        lambda: empty.emit_many([("Note", 1, "note.written")]),
        empty.process_pending_events,
        empty.cleanup_delivered_events,
    ]
    for call in calls:
        with pytest.raises(outbox.SchemaError, match="outbox init"):
            call()


def test_emitting_where_there_is_no_database_makes_no_file(tmp_path: Path) -> None:
    file = tmp_path / "none.sqlite3"
    box = Outbox(Settings(dispatch="off", database_url=f"sqlite:///{file}"))
    with pytest.raises(outbox.SchemaError, match="outbox init"):
        box.emit("Note", 1, "note.written")
    assert not file.exists()


# Their shape


def indexes(box: Outbox) -> dict[str, str]:
    """The indexes of the events' table, by name, as the database writes them."""
    query = {
        "postgres": "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'outbox_event'",
        "sqlite": """SELECT name, coalesce(sql, '') FROM sqlite_master
                     WHERE type = 'index' AND tbl_name = 'outbox_event'""",
    }
    return dict(box.dialect.run(query[box.dialect.name]).fetchall())


def test_the_pending_index_is_partial(box: Outbox) -> None:
    definition = indexes(box)["idx_outbox_pending_next"].replace("btree ", "").replace("public.", "")
    assert "outbox_event" in definition
    assert "(next_attempt_at) WHERE" in definition
    assert definition.rstrip(")").endswith("next_attempt_at IS NOT NULL")


def test_no_index_mentions_what_a_claim_changes(box: Outbox) -> None:
    for name, definition in indexes(box).items():
        assert not [column for column in MUTABLE if column in definition], name


def test_the_key_is_unique_by_a_name_of_its_own(box: Outbox) -> None:
    tables = {
        "postgres": "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'u'",
        "sqlite": "SELECT name, sql FROM sqlite_master WHERE name = 'outbox_event'",
    }
    found = " ".join(" ".join(row) for row in box.dialect.run(tables[box.dialect.name]).fetchall())
    assert re.search(r"unique_event_type_idempotency_key UNIQUE \(event_type, idempotency_key\)", found)


def test_ids_are_unique_on_every_database(box: Outbox) -> None:
    event = outbox.emit("Note", 1, "note.written")
    values = {**event.__data__, "seq": event.seq + 1, "idempotency_key": "other"}
    if box.dialect.name == "postgres":
        del values["seq"]
    with pytest.raises(peewee.IntegrityError):
        OutboxEvent.insert(**values).execute()


def test_numbers_are_never_used_again(box: Outbox) -> None:
    first = outbox.emit("Note", 1, "note.written")
    OutboxEvent.delete().execute()
    assert outbox.emit("Note", 1, "note.written").seq > first.seq


@on_postgres
def test_postgres_keeps_json_as_text_and_half_of_each_page_free(box: Outbox) -> None:
    assert box.dialect.run("SELECT reloptions FROM pg_class WHERE relname = 'outbox_event'").fetchone() == (
        ["fillfactor=50"],
    )
    types = dict(
        box.dialect.run(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'outbox_event'"
        ).fetchall()
    )
    assert {types[name] for name in ("payload", "headers", "progress")} == {"json"}
    assert {kind for name, kind in types.items() if name.endswith(("_at", "_until"))} == {"timestamp with time zone"}
    assert (types["id"], types["seq"], types["lease_id"]) == ("uuid", "bigint", "uuid")


@on_postgres
@pytest.mark.usefixtures("new_tables")
def test_a_claim_is_a_hot_update(box: Outbox, postgres_url: str) -> None:
    outbox.emit_many(("Note", number, "note.written", {"text": "x" * 100}) for number in range(200))
    batch = claim(box.delivery, 200)
    assert batch is not None
    assert len(batch.events) == 200
    database: Any = box.database
    database.close_all()  # with its end a session hands in its numbers
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        assert wait_until(lambda: updates(connection)[0] == 200)
        # A claimed row is a little longer than a new one: now and then a page is full before its last.
        assert updates(connection)[1] >= 150


def updates(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    """Return how many rows were updated, and how many of them without changing an index."""
    row = connection.execute(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'outbox_event'"
    ).fetchone()
    return (0, 0) if row is None else (row[0], row[1])
