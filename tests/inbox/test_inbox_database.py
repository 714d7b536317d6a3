"""An inbox in another database than the outbox, one without an outbox, and an application's own table `inbox`."""

from collections.abc import Iterator
from typing import Any

import peewee
import psycopg
import pytest

import outbox
from outbox import InboxMessage, OutboxEvent
from outbox.core import Outbox
from outbox.inbox.once_decorator import SKIPPED
from outbox.settings import Settings
from outbox.storage import schema
from outbox.storage.connect import open_database
from outbox.storage.peewee_database import place_of
from tests.conftest import Configure, Note, is_postgres
from tests.inbox.effects import inbox_rows, note_taker, notes
from tests.support.crowd import at_once
from tests.support.program import BIN, run
from tests.support.table import emit_one, on_postgres, statuses

MESSAGE = {"id": "m-1"}
MISSING = r"The inbox has no table in \S+ yet: run `outbox init` there, or call outbox\.inbox\.create_tables\(\)"
NOT_OURS = r"has a table called `inbox` that is not the outbox's\. Rename it, or set OUTBOX_TABLE_PREFIX"


@pytest.fixture
def other(request: pytest.FixtureRequest, url: str) -> Iterator[Any]:
    """An empty database of the other kind, with the application's table in it."""
    other_url = request.getfixturevalue("sqlite_url" if is_postgres(url) else "postgres_url")
    opened: Any = open_database(other_url)
    yield opened
    opened.close_all()


@pytest.fixture
def box(configure: Configure, other: Any) -> Outbox:
    """The outbox in one database; the application's own table, and so its inbox, in the other."""
    Note.bind(other)
    other.create_tables([Note])
    box = configure(inbox_database=other)
    outbox.inbox.create_tables()
    return box


class TestInAnotherDatabase:
    def test_the_row_and_the_effect_are_there_and_the_events_are_not(self, box: Outbox, other: Any) -> None:
        take_note = note_taker()
        assert [take_note(MESSAGE), take_note(MESSAGE)] == ["noted", SKIPPED]
        assert (notes(), inbox_rows()) == (["reader"], [("m-1", "reader")])
        assert InboxMessage._meta.database is other
        assert OutboxEvent._meta.database is box.database
        assert box.dialect.run("SELECT count(*) FROM inbox").fetchone() == (0,)
        assert set(other.get_tables()) == {"inbox", "note"}

    def test_a_handler_that_raises_leaves_neither(self, box: Outbox) -> None:
        @outbox.inbox.once("reader")
        def fail(message: object) -> None:
            Note.create(text="reader")
            raise ValueError("after the effect")

        with pytest.raises(ValueError, match="after the effect"):
            fail(MESSAGE)
        assert (notes(), inbox_rows()) == ([], [])

    def test_transactions_there_are_the_ones_that_count(self, box: Outbox, other: Any) -> None:
        with other.atomic() as transaction, box.database.atomic():
            note_taker()(MESSAGE)
            transaction.rollback()
        assert (notes(), inbox_rows()) == ([], [])
        with other.atomic(), box.database.atomic() as transaction:
            note_taker()(MESSAGE)
            transaction.rollback()
        assert (notes(), inbox_rows()) == (["reader"], [("m-1", "reader")])

    def test_a_worker_delivers_from_one_into_the_other(self, box: Outbox) -> None:
        outbox.handler("order.placed", name="reader")(note_taker())
        event = emit_one()
        box.process_pending_events()
        assert (statuses(), notes(), inbox_rows()) == ({"delivered": 1}, ["reader"], [(str(event.id), "reader")])

    def test_behind_a_proxy(self, configure: Configure, box: Outbox, other: Any) -> None:
        proxy = peewee.DatabaseProxy()
        proxy.initialize(other)
        assert configure(inbox_database=proxy).inbox.database is other
        assert note_taker()(MESSAGE) == "noted"

    def test_configuring_again_without_it_brings_the_inbox_back(self, configure: Configure, box: Outbox) -> None:
        again = configure()
        assert again.inbox.database is again.database
        assert InboxMessage._meta.database is again.database


class TestItsTableAlone:
    @pytest.fixture
    def consumer(self, url: str) -> Iterator[Outbox]:
        """An application that consumes and does not emit: its database has no outbox."""
        database: Any = open_database(url)
        yield Outbox(Settings(dispatch="off"), database=database)
        database.close_all()

    def test_can_be_made_where_there_is_no_outbox(self, consumer: Outbox) -> None:
        consumer.inbox.create_tables()
        consumer.inbox.create_tables()
        with consumer.inbox.claim(1, "reader") as first:
            assert first
        assert consumer.database.get_tables() == ["inbox"]
        assert [index.name for index in consumer.database.get_indexes("inbox") if not index.unique] == [
            "idx_inbox_processed_at"
        ]

    def test_is_created_once_by_many_callers_at_once(self, consumer: Outbox) -> None:
        assert at_once(consumer.database, [consumer.inbox.create_tables] * 8) == [None] * 8

    def test_is_kept_when_the_outbox_comes_later(self, consumer: Outbox) -> None:
        consumer.inbox.create_tables()
        with consumer.inbox.claim(1, "reader"):
            pass
        consumer.create_tables()
        consumer.check_schema()
        with consumer.inbox.claim(1, "reader") as first:
            assert not first
        later = schema.VERSIONS[schema.VERSIONS.index(schema.INBOX) + 1 :]
        assert not [version for version in later if "inbox" in str(version)]  # one must look at this case again

    def test_can_be_made_inside_the_callers_transaction(self, consumer: Outbox) -> None:
        with consumer.database.atomic() as transaction:
            consumer.inbox.create_tables()
            transaction.rollback()
        with pytest.raises(outbox.SchemaError), consumer.inbox.claim(1, "reader"):
            pass

    def test_is_missing_with_an_error_that_says_where_and_what_to_do(self, consumer: Outbox) -> None:
        consumer.database.connect()  # SQLite makes the file
        consumer.database.close()
        for call in (lambda: consumer.inbox.once("reader")(lambda _: None)(MESSAGE), consumer.inbox.cleanup):
            with pytest.raises(outbox.SchemaError, match=MISSING) as raised:
                call()
            assert place_of(consumer.database) in str(raised.value)

    def test_is_missing_without_aborting_the_callers_transaction(self, consumer: Outbox) -> None:
        with consumer.database.atomic():
            consumer.database.execute_sql("CREATE TABLE mine (id integer)")
            with pytest.raises(outbox.SchemaError, match=MISSING), consumer.inbox.claim(1, "reader"):
                pass
        assert consumer.database.get_tables() == ["mine"]

    def test_another_error_stays_what_it_is(self, consumer: Outbox) -> None:
        consumer.inbox.create_tables()
        consumer.database.execute_sql("ALTER TABLE inbox RENAME COLUMN processed_at TO at")
        with pytest.raises(peewee.DatabaseError, match="processed_at") as raised, consumer.inbox.claim(1, "reader"):
            pass
        assert raised.value.__cause__ is not raised.value


class TestAnApplicationsOwnInbox:
    @pytest.fixture
    def empty(self, url: str) -> Iterator[Outbox]:
        """A database in which `inbox` is something else, with something in it."""
        database: Any = open_database(url)
        database.execute_sql("CREATE TABLE inbox (id integer, mail text)")
        database.execute_sql("INSERT INTO inbox VALUES (1, 'Dear Ada')")
        yield Outbox(Settings(dispatch="off"), database=database)
        database.close_all()

    def test_is_refused_by_name_and_nothing_is_done(self, empty: Outbox) -> None:
        for call in (empty.create_tables, empty.inbox.create_tables):
            with pytest.raises(outbox.SchemaError, match=NOT_OURS) as raised:
                call()
            assert place_of(empty.database) in str(raised.value)
        assert empty.database.get_tables() == ["inbox"]

    def test_is_one_line_to_outbox_init(self, empty: Outbox, url: str) -> None:
        done = run(BIN / "outbox", "init", database_url=url)
        assert done.returncode == 2
        assert done.stdout.startswith("outbox: ")
        assert "that is not the outbox's. Rename it" in done.stdout
        assert done.stdout.count("\n") == 1

    def test_is_left_alone_when_the_inbox_is_elsewhere(self, empty: Outbox, other: Any) -> None:
        both = Outbox(Settings(dispatch="off"), database=empty.database, inbox_database=other)
        both.create_tables()
        both.check_schema()
        both.inbox.create_tables()
        event = both.emit("Note", 1, "note.written")
        with both.inbox.claim(event.id, "reader") as first:
            assert first
        assert both.inbox.cleanup() == {"deleted": 0, "remaining": 0}
        assert empty.database.execute_sql("SELECT mail FROM inbox").fetchone() == ("Dear Ada",)

    @on_postgres
    def test_may_be_in_another_schema(self, empty: Outbox, postgres_url: str) -> None:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA mine")
        database: Any = open_database(f"{postgres_url}?options=-csearch_path%3Dmine")
        mine = Outbox(Settings(dispatch="off"), database=database)
        for _ in range(2):
            mine.inbox.create_tables()
            mine.create_tables()
        with mine.inbox.claim("m-1", "reader") as first:
            assert first
        assert set(database.get_tables("mine")) >= {"inbox", "outbox_event", "outbox_schema"}
        database.close_all()
