"""outbox.testing.prove: what a handler bears, tried on copies of the database, in processes of their own."""

import contextlib
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg  # type: ignore[import-untyped]  # it carries no types
import peewee
import psycopg
import pytest

import outbox
from outbox import current_outbox, testing
from outbox.core import Outbox
from outbox.errors import RegistrationError
from outbox.storage.connect import open_database
from outbox.testing.proof import postgres_copies, scenarios, sqlite_copies
from outbox.testing.proof.call_process import CallProcess
from outbox.testing.proof.effects import Change, differences
from outbox.testing.proof.proof import AT_ONCE, KILLED, REPEATED, WITH_INBOX, WITHOUT_INBOX, Proof
from tests.conftest import Note, create_tables
from tests.support.async_database import open_async
from tests.support.servers import Postgres

EVERYTHING = [REPEATED, AT_ONCE, KILLED]
# Most of it is the same on both databases.
on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No handler here writes a time in whole seconds; the copies of this test are in a folder of its own."""
    monkeypatch.setattr(scenarios, "LATER_SECONDS", 0.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def postgres_box(postgres_server: Postgres) -> Iterator[Outbox]:
    """An outbox on a database to which nothing else is connected."""
    database: Any = open_database(postgres_server.create_database("prove"))
    create_tables(database)
    Note.bind(database)
    yield outbox.configure(database=database, dispatch="off", publish_seconds=0)
    database.close_all()
    current_outbox.registry.clear()
    current_outbox.forget()
    postgres_server.drop_database(database.database)


def placed() -> outbox.Event:
    return testing.make_event("order.placed", {"total": 20}, aggregate=("Order", 7))


def tried(handler: Callable[..., Any], **options: Any) -> Proof:
    return testing.prove(handler, placed(), raise_errors=False, **options)


def insert(event: outbox.Event) -> None:
    Note.create(text=event.aggregate_id)


def check_then_insert(event: outbox.Event) -> None:
    if not Note.select().where(Note.text == event.aggregate_id).exists():
        Note.create(text=event.aggregate_id)


def insert_then_mark(event: outbox.Event) -> None:
    if not Note.select().where(Note.text == "done").exists():
        Note.create(text="mail")
        Note.create(text="done")


def delete(event: outbox.Event) -> None:
    Note.delete().where(Note.text == "old").execute()


def test_values_of_columns_that_sound_like_secrets_are_not_shown() -> None:
    row = ("1", "hush", '{"token": "hush", "a": 1}')
    change = Change(("id", "password", "settings"), Counter([row]), Counter())
    (_, shown) = differences({}, {"user": change}, {})
    assert shown == '  too much: id=1, password=•••, settings={"token": "•••", "a": 1}'


class TestWhatAHandlerBears:
    """Each is weak where the one before is not."""

    @on_sqlite
    def test_a_deletion_bears_everything(self, box: Outbox, tmp_path: Path) -> None:
        Note.create(text="old")
        before = set(tmp_path.iterdir())
        proof = tried(delete)
        assert (proof.is_safe, proof.safe_under) == (True, EVERYTHING)
        assert len(proof.variants) == 1
        assert [note.text for note in Note.select()] == ["old"]
        assert set(tmp_path.iterdir()) <= before | {tmp_path / f"outbox.sqlite3{end}" for end in ("-wal", "-shm")}

    @on_sqlite
    def test_an_insert_needs_the_inbox(self, box: Outbox) -> None:
        proof = tried(insert)
        own, in_inbox = proof.variants
        assert (proof.is_safe, proof.safe_under) == (False, [])
        assert own.weaknesses[0].differences == (
            "table note: 2 new rows instead of 1 new row",
            "  too much: id=2, text=7",
        )
        assert (in_inbox.name, in_inbox.is_safe) == (WITH_INBOX, True)

    @on_sqlite
    def test_a_look_before_the_insert_does_not_see_another_call(self, box: Outbox) -> None:
        proof = tried(check_then_insert)
        assert proof.safe_under == [REPEATED, KILLED]
        (weakness,) = proof.variants[0].weaknesses
        assert weakness.when.startswith("when a second call runs after statement 1 of 2: SELECT")

    @on_sqlite
    def test_a_mark_that_is_not_in_the_same_transaction_is_not_reached(self, box: Outbox) -> None:
        self.does_not_reach_its_mark()

    def test_on_postgres(self, postgres_box: Outbox) -> None:
        self.does_not_reach_its_mark(most_statements=2)
        assert databases(postgres_box) == []

    def does_not_reach_its_mark(self, **options: Any) -> None:
        proof = tried(insert_then_mark, **options)
        assert proof.safe_under == [REPEATED]
        weakness = proof.variants[0].weaknesses[-1]
        assert weakness.when.startswith("when killed after statement 2 of 3: INSERT INTO")
        assert "text=mail" in weakness.differences[1]
        assert proof.variants[1].is_safe
        assert Note.select().count() == 0


def databases(box: Outbox) -> list[str]:
    rows = box.database.execute_sql(
        "SELECT datname FROM pg_database WHERE datname LIKE %s", (f"%prove_{os.getpid()}%",)
    )
    return [name for (name,) in rows.fetchall()]


@on_sqlite
class TestTheComparison:
    def test_ids_times_and_attempts_are_not_compared(self, box: Outbox) -> None:
        def stamp(event: outbox.Event) -> None:
            with box.database.atomic():
                Note.delete().execute()
                Note.create(text=f"{time.time_ns()} {event.attempt}")

        proof = tried(stamp)
        assert proof.is_safe
        assert proof.variants[0].ignored == ["note.text"]

    def test_times_in_whole_seconds_are_not_compared_either(self, box: Outbox, tmp_path: Path) -> None:
        """Here the first two calls, which are the measure, are made in one second, and all later ones in the next."""
        calls = tmp_path / "calls"

        def store(event: outbox.Event) -> None:
            calls.write_text(calls.read_text() + "." if calls.exists() else ".")
            Note.insert(
                id=1, text="12:00:00" if len(calls.read_text()) <= 2 else "12:00:01"
            ).on_conflict_replace().execute()

        proof = tried(store)
        assert proof.is_safe
        assert proof.variants[0].ignored == ["note.text"]

    def test_events_that_it_emits_are_compared(self, box: Outbox) -> None:
        def follow(event: outbox.Event) -> None:
            outbox.emit("Order", 7, "order.booked", {"by": str(event.id)}, idempotency_key=outbox.UNIQUE)

        proof = tried(follow)
        assert proof.safe_under == []
        assert "table outbox_event: 2 new rows instead of 1 new row" in str(proof)

    def test_what_only_this_process_remembers_is_lost(self, box: Outbox) -> None:
        seen: set[object] = set()

        def once_a_process(event: outbox.Event) -> None:
            if event.id not in seen:
                seen.add(event.id)
                insert(event)

        assert tried(once_a_process).safe_under == []

    def test_a_second_call_that_raises_again_and_again_is_a_weakness(self, box: Outbox) -> None:
        def strict(event: outbox.Event) -> None:
            Note.create(id=7, text="of order 7")

        proof = tried(strict)
        assert proof.safe_under == []
        assert "the call after it fails: IntegrityError: UNIQUE constraint failed: note.id" in str(proof)

    def test_a_handler_that_trusts_its_first_attempt_is_killed_before_it(self, box: Outbox) -> None:
        def first_only(event: outbox.Event) -> None:
            if event.attempt == 1:
                insert(event)

        proof = tried(first_only)
        (weakness, *_) = proof.variants[0].weaknesses
        assert weakness.when == "when killed before its first statement"
        assert weakness.differences[0] == "table note: no new row instead of 1 new row"


@on_sqlite
class TestTheInbox:
    def test_a_handler_in_the_inbox_is_tried_without_it_as_well(self, box: Outbox) -> None:
        handler = outbox.handler("order.placed", name="notes")(outbox.inbox.once("notes")(insert))
        proof = testing.prove("notes", placed())
        assert proof.is_safe
        assert [(each.name, each.is_safe) for each in proof.variants[1:]] == [(WITHOUT_INBOX, False)]
        assert handler is not insert

    def test_a_commit_of_its_own_is_too_much_for_the_inbox(self, box: Outbox) -> None:
        @outbox.inbox.once("commits")
        def commits(event: outbox.Event) -> None:
            insert(event)
            box.database.commit()
            box.database.begin()
            insert(event)

        proof = tried(commits)
        assert KILLED not in proof.safe_under


@on_sqlite
class TestWhatIsRefused:
    def test_a_call_to_a_host_is_refused_and_reported(self, box: Outbox) -> None:
        def call(event: outbox.Event) -> None:
            urllib.request.urlopen("http://crm.invalid/hook", timeout=5)

        proof = tried(call)
        assert (proof.is_safe, proof.variants[0].outside) == (False, ["crm.invalid:80"])
        assert "must not call crm.invalid:80" in str(proof)
        assert "calls outside the database, which can't be compared: crm.invalid:80" in str(proof)

    def test_a_call_that_is_allowed_is_reported(self, box: Outbox) -> None:
        def call(event: outbox.Event) -> None:
            subprocess.run([sys.executable, "-c", ""], check=True)

        proof = tried(call, allow_calls=True)
        assert (proof.is_safe, proof.variants[0].outside) == (True, [f"the program {sys.executable}"])

    def test_another_database_is_refused(self, box: Outbox, tmp_path: Path) -> None:
        other = peewee.SqliteDatabase(str(tmp_path / "other.sqlite3"))
        other.execute_sql("CREATE TABLE kept (x)")
        other.close()

        def elsewhere(event: outbox.Event) -> None:
            other.execute_sql("INSERT INTO kept VALUES (1)")

        def attached(event: outbox.Event) -> None:
            box.database.execute_sql(f"ATTACH '{tmp_path / 'other.sqlite3'}' AS other")
            box.database.execute_sql("INSERT INTO other.kept VALUES (1)")

        assert "which is no copy" in str(tried(elsewhere))
        assert "not authorized" in str(tried(attached))
        assert other.execute_sql("SELECT count(*) FROM kept").fetchone() == (0,)

    def test_a_handler_that_raises_is_not_proved(self, box: Outbox) -> None:
        def fails(event: outbox.Event) -> None:
            raise ValueError("no stock")

        with pytest.raises(
            testing.NotSafe, match=r"not proved: ValueError: no stock \(.*test_prove.py:\d+\)"
        ) as caught:
            testing.prove(fails, placed())
        assert caught.value.proof.safe_under == []

    def test_a_call_that_does_not_end_is_ended(self, box: Outbox) -> None:
        proof = tried(lambda event: time.sleep(3600), seconds=0.2)
        assert "did not return within 0.2 seconds" in str(proof)

    def test_what_is_no_handler_is_refused(self, box: Outbox) -> None:
        box.registry.add(outbox.Webhook("crm", "https://crm.invalid/hook", secret="whsec_" + "A" * 44))
        with pytest.raises(RegistrationError, match="'crm' is not a handler"):
            testing.prove("crm", placed())

    def test_a_large_database_is_refused(self, box: Outbox) -> None:
        with pytest.raises(testing.CannotProve, match="has 0 MB, and it is copied"):
            testing.prove(insert, placed(), most_megabytes=0)


@on_sqlite
def test_copies_are_dropped_after_an_interrupt(box: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        assert list(tmp_path.glob("outbox-prove-*/*"))
        raise KeyboardInterrupt

    monkeypatch.setattr(CallProcess, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tried(insert)
    assert list(tmp_path.glob("outbox-prove-*")) == []


class TestPostgres:
    def test_copies_are_dropped_after_an_interrupt(self, postgres_box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: object) -> None:
            assert len(databases(postgres_box)) == 2
            raise KeyboardInterrupt

        monkeypatch.setattr(CallProcess, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tried(insert)
        assert databases(postgres_box) == []

    def test_a_transaction_that_is_open_is_refused(self, postgres_box: Outbox) -> None:
        with (
            postgres_box.database.atomic(),
            pytest.raises(testing.CannotProve, match="PostgreSQL copies only what is committed"),
        ):
            tried(insert)

    def test_a_database_that_is_in_use_is_dumped(self, postgres_box: Outbox, postgres_server: Postgres) -> None:
        """With a pg_dump that is too old for the server, or without one, the error says so."""
        address = postgres_server.url.rpartition("/")[0] + f"/{postgres_box.database.database}"
        with psycopg.connect(address) as other:
            expected: Any = contextlib.nullcontext()
            if dumps_up_to() < other.info.server_version // 10_000:
                expected = pytest.raises(testing.CannotProve, match=r"install pg_dump|server version mismatch")
            with expected:
                assert tried(insert).variants[0].weaknesses[0].differences[0].startswith("table note: 2 new rows")
        assert databases(postgres_box) == []

    def test_programs_with_an_older_libpq_get_nothing_that_they_refuse(
        self, postgres_box: Outbox, postgres_server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """libpq 15 refuses `sslcertmode`, which libpq 16 has set, as a parameter. As a variable it is ignored."""
        for program in ("pg_dump", "psql"):
            (tmp_path / program).write_text(f'#!/bin/sh\necho "$@" >&2; env > {tmp_path}/{program}.env; exit 1')
            (tmp_path / program).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        url = urlsplit(postgres_server.url)
        name = postgres_box.database.database
        with psycopg.connect(url._replace(path=f"/{name}").geturl()) as other:
            with pytest.raises(testing.CannotProve, match=r"could not copy the database: --no-owner --no-privileges$"):
                tried(insert)
            with monkeypatch.context() as patch:
                patch.setenv("PGSERVICE", "elsewhere")  # its values would count for more than these variables
                assert "PGSERVICE" not in postgres_copies._environment(other.info)
        given = set((tmp_path / "pg_dump.env").read_text().splitlines())
        assert given >= {f"PGDATABASE={name}", f"PGPORT={url.port}", "PGUSER=outbox", "PGPASSWORD=p@ss"}


def dumps_up_to() -> int:
    """Return the newest version of PostgreSQL that the machine's pg_dump can dump, or 0."""
    found = shutil.which("pg_dump")
    if found is None or shutil.which("psql") is None:
        return 0
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.findall(r"\d+", said)[0])


@contextlib.contextmanager
def asynchronous(url: str) -> Iterator[Any]:
    """Make the outbox one on an asynchronous database at this URL."""
    database = open_async(url)
    box: Any = outbox.configure(database=database, dispatch="off", publish_seconds=0)
    with Note.bind_ctx(database):
        yield database
    box.database.close_all()


def async_mark_of(database: Any) -> Callable[[outbox.Event], Any]:
    async def insert_then_mark_later(event: outbox.Event) -> None:
        if not await database.run(Note.select().where(Note.text == "done").exists):
            await database.run(lambda: Note.create(text="mail"))
            async with database.atomic():
                await database.run(lambda: Note.create(text="done"))

    return insert_then_mark_later


class TestAsyncHandlers:
    def proved(self, database: Any) -> None:
        proof = tried(async_mark_of(database), most_statements=2)
        assert proof.safe_under == [REPEATED]
        assert proof.variants[0].weaknesses[-1].when.startswith("when killed after statement 2 of ")

    @on_sqlite
    def test_on_sqlite(self, box: Outbox, sqlite_url: str) -> None:
        with asynchronous(sqlite_url) as database:
            self.proved(database)

    def test_on_postgres(self, postgres_box: Outbox, postgres_server: Postgres) -> None:
        address = postgres_server.url.rpartition("/")[0] + f"/{postgres_box.database.database}"
        postgres_box.close()

        async def elsewhere(event: outbox.Event) -> None:
            await asyncpg.connect(address)

        with asynchronous(address) as database:
            self.proved(database)
            assert "which is no copy" in str(tried(elsewhere))


@on_sqlite
def test_the_database_of_the_inbox_is_copied_as_well(box: Outbox, tmp_path: Path) -> None:
    """The application's own tables are there, and the outbox is elsewhere."""
    own: Any = open_database(f"sqlite:///{tmp_path / 'own.sqlite3'}")
    outbox.configure(database=box.database, inbox_database=own, dispatch="off", publish_seconds=0)
    outbox.inbox.create_tables()
    with Note.bind_ctx(own):
        own.create_tables([Note])

        def both(event: outbox.Event) -> None:
            Note.create(text="own")
            outbox.emit("Order", 7, "order.booked", on_duplicate="ignore")

        proof = tried(both, most_statements=1)
        assert (
            proof.variants[0].weaknesses[0].differences[0] == "table database 2: note: 2 new rows instead of 1 new row"
        )
        assert len(proof.variants[0].weaknesses[0].differences) == 2
        assert Note.select().count() == 0
    own.close_all()


@on_sqlite
def test_what_a_test_has_not_committed_is_copied_too(box: Outbox) -> None:
    with box.database.atomic():
        Note.create(text="7")
        proof = tried(check_then_insert)
        assert proof.is_safe
        assert not proof.variants[0].problem


def test_a_database_in_memory_is_proved_in_a_file() -> None:
    memory = peewee.SqliteDatabase(":memory:")
    with memory.bind_ctx([Note]):
        outbox.configure(database=memory, dispatch="off", publish_seconds=0).create_tables()
        memory.create_tables([Note])
        assert tried(check_then_insert).safe_under == [REPEATED, KILLED]
        assert Note.select().count() == 0
    current_outbox.forget()


def test_the_backup_waits_for_nobody(tmp_path: Path) -> None:
    """Reading the original goes on beside a writer, and changes nothing."""
    file = tmp_path / "original.sqlite3"
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = wal")
        writer.execute("CREATE TABLE kept (x)")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO kept VALUES (1)")
        original = sqlite_copies.SqliteOriginal(peewee.SqliteDatabase(str(file)))
        try:
            assert original.make_base(100).read() == {"kept": (("x",), {})}
        finally:
            original.close()
