"""The row and the effect are one: both are there, or neither is."""

import contextlib
from collections.abc import Callable
from typing import Any

import peewee
import psycopg
import pytest

import outbox
from outbox.core import Outbox
from outbox.inbox.once_decorator import SKIPPED
from tests.conftest import Configure, Note
from tests.inbox.effects import inbox_rows, note_taker, notes
from tests.support.crowd import elsewhere
from tests.support.table import on_postgres, statements, statuses

MESSAGE = {"id": "m-1"}
ROW = ("m-1", "reader")


class Broken(Exception):
    """What goes wrong in a handler."""


@outbox.inbox.once("reader")
def read(message: dict[str, Any], error: BaseException | None = None) -> str:
    """Leaves a note, and may fail after that."""
    Note.create(text="reader")
    if error is not None:
        raise error
    return "noted"


class TestAHandlerThatRaises:
    @pytest.mark.parametrize("error", [Broken(), peewee.OperationalError("busy"), KeyboardInterrupt()], ids=repr)
    def test_leaves_neither_and_may_be_tried_again(self, box: Outbox, error: BaseException) -> None:
        for _ in range(2):
            with pytest.raises(type(error)):
                read(MESSAGE, error)
            assert (notes(), inbox_rows()) == ([], [])
        assert [read(MESSAGE), read(MESSAGE)] == ["noted", SKIPPED]
        assert (notes(), inbox_rows()) == (["reader"], [ROW])

    def test_is_not_counted_as_skipped(self, box: Outbox) -> None:
        with pytest.raises(Broken):
            read(MESSAGE, Broken())
        assert box.counters["skipped"] == 0

    def test_in_a_claim_leaves_neither(self, box: Outbox) -> None:
        def fail() -> None:
            with outbox.inbox.claim("m-1", "reader"):
                Note.create(text="reader")
                raise Broken

        with pytest.raises(Broken):
            fail()
        assert (notes(), inbox_rows()) == ([], [])

    def test_inside_another_handler_takes_both_along_unless_caught(self, box: Outbox) -> None:
        @outbox.inbox.once("outer")
        def outer(message: dict[str, Any], *, caught: bool) -> None:
            Note.create(text="outer")
            try:
                read(message, Broken())
            except Broken:
                if not caught:
                    raise

        with pytest.raises(Broken):
            outer(MESSAGE, caught=False)
        assert (notes(), inbox_rows()) == ([], [])
        outer(MESSAGE, caught=True)
        assert (notes(), inbox_rows()) == (["outer"], [("m-1", "outer")])

    def test_with_an_error_of_the_databases_own_leaves_neither(self, box: Outbox) -> None:
        @outbox.inbox.once("reader")
        def wrong(message: dict[str, Any]) -> None:
            Note.create(text="reader")
            box.database.execute_sql("SELECT nonsense")

        with pytest.raises(peewee.DatabaseError):
            wrong(MESSAGE)
        assert (notes(), inbox_rows()) == ([], [])
        assert read(MESSAGE) == "noted"


class TestAnErrorOfTheDatabasesThatIsCaught:
    """PostgreSQL would answer the COMMIT with a rollback, without an error."""

    @pytest.fixture
    def catch(self, box: Outbox) -> Callable[..., Any]:
        """A handler that goes on after a duplicate key."""

        @outbox.inbox.once("reader")
        def catch(message: dict[str, Any], *, savepoint: bool = False) -> str:
            note: Any = Note.create(text="reader")
            part = box.database.atomic() if savepoint else contextlib.nullcontext()
            with contextlib.suppress(peewee.IntegrityError), part:
                Note.insert(id=note.id, text="the same key").execute()
            return "noted"

        return catch

    @on_postgres
    def test_is_an_error_that_says_what_to_do_instead_of_an_effect_that_is_lost(
        self, box: Outbox, catch: Callable[..., Any]
    ) -> None:
        for _ in range(2):
            with pytest.raises(outbox.TransactionRequired, match=r"'reader' can't be committed.*db\.atomic\(\)"):
                catch(MESSAGE)
        assert (notes(), inbox_rows()) == ([], [])

    @on_postgres
    def test_leaves_the_callers_own_work(self, box: Outbox, catch: Callable[..., Any]) -> None:
        with box.database.atomic():
            Note.create(text="caller")
            with pytest.raises(outbox.TransactionRequired):
                catch(MESSAGE)
        assert (notes(), inbox_rows()) == (["caller"], [])

    def test_does_no_harm_in_a_savepoint_of_its_own(self, box: Outbox, catch: Callable[..., Any]) -> None:
        assert catch(MESSAGE, savepoint=True) == "noted"
        assert catch(MESSAGE, savepoint=True) is SKIPPED
        assert (notes(), inbox_rows()) == (["reader"], [ROW])

    @pytest.mark.parametrize("word", ["ROLLBACK", "COMMIT"])
    def test_nor_may_a_handler_end_the_transaction(self, box: Outbox, word: str) -> None:
        def end() -> None:
            with outbox.inbox.claim("m-1", "reader"):
                box.database.execute_sql(word)

        with pytest.raises(
            (outbox.TransactionRequired, peewee.OperationalError), match=r"has ended the transaction|no transaction"
        ):
            end()  # of a transaction that is gone SQLite itself complains


def commit_by_peewee(database: Any) -> None:
    database.top_transaction().commit()


def commit_by_hand(database: Any) -> None:
    database.execute_sql("COMMIT")


@pytest.mark.parametrize("commit", [commit_by_peewee, commit_by_hand])
class TestAHandlerThatCommitsAndThenRaises:
    """What it committed can't be undone. That it is skipped the next time, with half its effect, can be prevented."""

    @pytest.fixture
    def half(self, box: Outbox, commit: Callable[[Any], None]) -> Callable[..., Any]:
        @outbox.inbox.once("reader")
        def half(message: dict[str, Any], error: BaseException | None) -> str:
            Note.create(text="first half")
            if error is not None:
                commit(box.database)
                raise error
            Note.create(text="second half")
            return "noted"

        return half

    def test_is_not_skipped_when_the_message_comes_again(
        self, half: Callable[..., Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(outbox.TransactionRequired, match="'reader' called commit itself and then raised") as raised:
            half(MESSAGE, Broken())
        assert isinstance(raised.value.__cause__, Broken)
        assert "that part of the effect will then happen twice" in caplog.text
        assert inbox_rows() == []
        assert [half(MESSAGE, None), half(MESSAGE, None)] == ["noted", SKIPPED]
        assert (notes(), inbox_rows()) == (["first half", "first half", "second half"], [ROW])

    @pytest.mark.parametrize("error", [outbox.Reject("never"), outbox.Unavailable(), KeyboardInterrupt()], ids=repr)
    def test_what_decides_about_the_message_goes_through(
        self, half: Callable[..., Any], error: BaseException, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(type(error)) as raised:
            half(MESSAGE, error)
        assert raised.value is error
        assert inbox_rows() == []
        assert "'reader' called commit itself" in caplog.text

    @pytest.mark.parametrize("caught", [True, False])
    def test_of_a_callers_transaction_leaves_one_that_can_be_ended(
        self, box: Outbox, half: Callable[..., Any], *, caught: bool
    ) -> None:
        def call() -> None:
            with box.database.atomic():
                Note.create(text="caller")
                try:
                    half(MESSAGE, Broken())
                except outbox.TransactionRequired:
                    Note.create(text="caught")
                    if not caught:
                        raise

        with contextlib.nullcontext() if caught else pytest.raises(outbox.TransactionRequired):
            call()
        assert notes() == [*(["caller", "caught"] if caught else ["caller"]), "first half"]
        assert inbox_rows() == []

    def test_inside_another_handler_leaves_no_row_of_either(self, half: Callable[..., Any]) -> None:
        @outbox.inbox.once("outer")
        def outer(message: dict[str, Any]) -> None:
            half(message, Broken())

        with pytest.raises(outbox.TransactionRequired, match="'outer' called commit itself"):
            outer(MESSAGE)
        assert inbox_rows() == []


def test_a_handler_that_raises_leaves_the_row_of_another_that_came_after_it(
    box: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the rollback and the DELETE of the row, a second delivery of the message may have been processed."""
    delete_committed_row = box.inbox._delete_committed_row

    def let_another_in(*args: Any, **kwargs: Any) -> bool:
        assert elsewhere(box.database, lambda: read(MESSAGE)) == "noted"
        return delete_committed_row(*args, **kwargs)

    monkeypatch.setattr(box.inbox, "_delete_committed_row", let_another_in)
    with pytest.raises(Broken):
        read(MESSAGE, Broken())
    assert (notes(), inbox_rows()) == (["reader"], [ROW])
    assert read(MESSAGE) is SKIPPED


class TestInsideTheCallersTransaction:
    def test_a_commit_keeps_both(self, box: Outbox) -> None:
        with box.database.atomic():
            Note.create(text="caller")
            assert read(MESSAGE) == "noted"
            assert elsewhere(box.database, inbox_rows) == []
        assert (notes(), inbox_rows()) == (["caller", "reader"], [ROW])

    def test_a_rollback_leaves_neither(self, box: Outbox) -> None:
        with box.database.atomic() as transaction:
            assert [read(MESSAGE), read(MESSAGE)] == ["noted", SKIPPED]
            transaction.rollback()
        assert (notes(), inbox_rows()) == ([], [])
        assert read(MESSAGE) == "noted"

    def test_a_savepoint_that_is_rolled_back_leaves_neither(self, box: Outbox) -> None:
        with box.database.atomic():
            Note.create(text="caller")
            with box.database.atomic() as savepoint:
                assert read(MESSAGE) == "noted"
                savepoint.rollback()
            assert (notes(), inbox_rows()) == (["caller"], [])
            assert read(MESSAGE) == "noted"
        assert (notes(), inbox_rows()) == (["caller", "reader"], [ROW])

    @pytest.mark.parametrize("error", [Broken(), peewee.OperationalError("elsewhere")], ids=repr)
    def test_a_handler_that_raises_leaves_the_callers_own_work(self, box: Outbox, error: Exception) -> None:
        with box.database.atomic():
            Note.create(text="caller")
            with pytest.raises(type(error)):
                read(MESSAGE, error)
            Note.create(text="goes on")
        assert (notes(), inbox_rows()) == (["caller", "goes on"], [])

    def test_a_plain_begin_is_a_transaction_too(self, box: Outbox) -> None:
        for ending, left in (("ROLLBACK", []), ("COMMIT", ["reader"])):
            box.database.execute_sql("BEGIN")
            assert read(MESSAGE) == "noted"
            box.database.execute_sql(ending)
            assert notes() == left
        box.database.close()

    def test_a_transaction_that_is_committed_by_hand_is_one_too(self, box: Outbox) -> None:
        with box.database.connection_context(), box.database.manual_commit():
            with pytest.raises(outbox.TransactionRequired, match=r"db\.begin\(\)"):
                read(MESSAGE)
            for end, left in ((box.database.rollback, []), (box.database.commit, ["reader"])):
                box.database.begin()
                assert read(MESSAGE) == "noted"
                end()
                assert notes() == left

    def test_outside_one_it_is_one_transaction_that_begins_with_the_row(self, box: Outbox) -> None:
        with statements(box.database) as seen:
            read(MESSAGE)
        words = [statement.split()[0] for statement in seen if not statement.startswith("PRAGMA")]
        assert words in (["BEGIN", "INSERT", "INSERT"], ["INSERT", "INSERT"])  # psycopg begins by itself
        assert "INSERT INTO inbox" in " ".join(seen).partition("note")[0]


class TestEmitting:
    def test_what_a_handler_emits_belongs_to_its_transaction(self, box: Outbox) -> None:
        @outbox.inbox.once("relay")
        def relay(message: dict[str, Any], error: Exception | None = None) -> None:
            outbox.emit("Order", message["id"], "order.seen")
            if error is not None:
                raise error

        with pytest.raises(Broken):
            relay(MESSAGE, Broken())
        assert (statuses(), inbox_rows()) == ({}, [])
        relay(MESSAGE)
        relay(MESSAGE)
        assert (statuses(), inbox_rows()) == ({"pending": 1}, [("m-1", "relay")])

    def test_it_is_delivered_after_the_commit_and_not_before(self, configure: Configure) -> None:
        configure(dispatch="inline")
        seen: list[list[tuple[str, str]]] = []
        outbox.handler("order.seen", name="witness")(lambda _: seen.append(inbox_rows()))
        with outbox.inbox.claim("m-1", "relay"):
            outbox.emit("Order", 1, "order.seen")
            assert seen == []
        assert seen == [[("m-1", "relay")]]

    def test_it_counts_as_emitted_inside_a_transaction(self, configure: Configure) -> None:
        configure(require_transaction=True)
        with outbox.inbox.claim("m-1", "relay"):
            outbox.emit("Order", 1, "order.seen")
        assert statuses() == {"pending": 1}


@on_postgres
class TestAStricterIsolation:
    """REPEATABLE READ: the later call gets PostgreSQL's error, and can be tried again."""

    def test_a_row_from_after_the_snapshot_is_a_serialization_error(self, box: Outbox) -> None:
        def come_too_late() -> None:
            with box.database.atomic("REPEATABLE READ"):
                Note.select().count()  # from here on it sees nothing new
                elsewhere(box.database, lambda: read(MESSAGE))
                read(MESSAGE)

        with pytest.raises(peewee.OperationalError) as raised:
            come_too_late()
        assert isinstance(raised.value.orig, psycopg.errors.SerializationFailure)  # type: ignore[attr-defined]
        with box.database.atomic("REPEATABLE READ"):
            assert read(MESSAGE) is SKIPPED
        assert (notes(), inbox_rows()) == (["reader"], [ROW])


@on_postgres
def test_a_connection_that_is_lost_in_a_handler_leaves_neither(box: Outbox, postgres_url: str) -> None:
    @outbox.inbox.once("reader")
    def lose(message: dict[str, Any]) -> None:
        Note.create(text="reader")
        (pid,) = box.database.execute_sql("SELECT pg_backend_pid()").fetchone()
        with psycopg.connect(postgres_url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        Note.create(text="never")

    with pytest.raises((peewee.OperationalError, peewee.InterfaceError)):
        lose(MESSAGE)
    assert (notes(), inbox_rows()) == ([], [])
    assert [note_taker()(MESSAGE), note_taker()(MESSAGE)] == ["noted", SKIPPED]
