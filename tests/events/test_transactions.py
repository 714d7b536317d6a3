"""No event is delivered before the commit, none of a rollback ever, and a transaction notifies a worker once.

Each way to begin and end a transaction is tried with notifications in the background, as with Dramatiq, and with inline
delivery.
"""

import contextlib
import contextvars
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import peewee
import psycopg
import pytest

import outbox
from outbox import OutboxEvent
from outbox.configured_dispatch import deliver_inline
from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage.connect import open_database
from outbox.storage.peewee_database import place_of
from tests.conftest import Configure, Note
from tests.support.crowd import elsewhere
from tests.support.notifications import CountedNotifications, replace_wake
from tests.support.table import end_session

Body = Callable[[], None]


class Witness:
    """What followed the commits: wake-ups, and the events that handlers saw."""

    def __init__(self, box: Outbox) -> None:
        self.box = box
        self.database: Any = box.database
        self.delivered: list[str] = []
        self._inline_wakes = 0
        outbox.handler("*", name="witness")(lambda event: self.delivered.append(event.aggregate_id))
        self._counted: CountedNotifications | None = None
        if self.inline:
            replace_wake(box, self._deliver, inline=True)
        else:
            self._counted = CountedNotifications(box)

    @property
    def inline(self) -> bool:
        return self.box.settings.dispatch == "inline"

    @property
    def wakes(self) -> int:
        return self._inline_wakes if self._counted is None else self._counted.times

    def saw_nothing(self) -> bool:
        return self.wakes == 0 and self.delivered == []

    def swept(self) -> list[str]:
        """What has been delivered once a sweep has been as well."""
        outbox.process_pending_events()
        return self.delivered

    def _deliver(self) -> None:
        self._inline_wakes += 1
        deliver_inline(self.box.delivery, self.box.settings.batch_size)


@pytest.fixture(params=["off", "inline"], ids=["background", "inline"])
def witness(request: pytest.FixtureRequest, configure: Configure) -> Iterator[Witness]:
    witness = Witness(configure(dispatch=request.param))
    yield witness
    witness.box.notifier.flush()


def emit(number: object = 1) -> OutboxEvent:
    return outbox.emit("Note", number, "note.written")


def one() -> None:
    emit(1)


def two() -> None:
    emit(2)


def stored() -> list[str]:
    return [event.aggregate_id for event in OutboxEvent.select().order_by(OutboxEvent.seq)]


# Every way to commit


def in_atomic(database: Any, body: Body) -> None:
    with database.atomic():
        body()


def in_nested_atomic(database: Any, body: Body) -> None:
    with database.atomic(), database.atomic(), database.atomic():
        body()


def in_nested_transactions(database: Any, body: Body) -> None:
    with database.transaction(), database.transaction():
        body()


def in_with_database(database: Any, body: Body) -> None:
    with database:
        body()


def in_decorator(database: Any, body: Body) -> None:
    database.atomic()(body)()


def in_session(database: Any, body: Body) -> None:
    database.session_start()
    body()
    assert database.session_commit()


COMMITTING = [in_atomic, in_nested_atomic, in_nested_transactions, in_with_database, in_decorator, in_session]


@pytest.mark.parametrize("committing", COMMITTING)
def test_a_commit_notifies_once_and_not_before(witness: Witness, committing: Callable[[Any, Body], None]) -> None:
    def body() -> None:
        Note.create(text="x")
        emit(1)
        emit(2)
        assert witness.saw_nothing()

    committing(witness.database, body)
    assert witness.wakes == 1
    assert witness.swept() == stored() == ["1", "2"]


def test_a_hundred_emits_in_a_transaction_are_one_notification(witness: Witness) -> None:
    with witness.database.atomic():
        for number in range(100):
            emit(number)
    assert witness.wakes == 1


def test_emit_many_is_one_notification_inside_a_transaction_and_outside(witness: Witness) -> None:
    with witness.database.atomic():
        outbox.emit_many(("Note", number, "note.written") for number in range(5))
        assert witness.saw_nothing()
    assert witness.wakes == 1
    outbox.emit_many(("Note", number, "note.written") for number in range(5, 10))
    assert witness.wakes == 2


def test_each_transaction_is_one_notification(witness: Witness) -> None:
    for number in range(3):
        with witness.database.atomic():
            emit(number)
    assert witness.wakes == 3


def test_a_transaction_without_events_is_no_notification(witness: Witness) -> None:
    with witness.database.atomic():
        Note.create(text="x")
    assert witness.saw_nothing()


def test_without_a_transaction_an_event_is_committed_and_notified_at_once(witness: Witness) -> None:
    emit(1)
    assert witness.wakes == 1
    assert elsewhere(witness.database, stored) == ["1"]
    assert witness.swept() == ["1"]


# Every way to roll back


def by_exception(database: Any, body: Body) -> None:
    with contextlib.suppress(ZeroDivisionError), database.atomic():
        body()
        raise ZeroDivisionError


def by_exception_through_nested_blocks(database: Any, body: Body) -> None:
    with contextlib.suppress(ZeroDivisionError), database.atomic(), database.atomic():
        body()
        raise ZeroDivisionError


def by_hand(database: Any, body: Body) -> None:
    with database.atomic() as transaction:
        body()
        transaction.rollback()


def by_session_rollback(database: Any, body: Body) -> None:
    database.session_start()
    body()
    assert database.session_rollback()


def by_losing_the_connection(database: Any, body: Body) -> None:
    with pytest.raises(peewee.PeeweeException), database.atomic():  # noqa: PT012
        body()
        break_connection(database)
    database.close()


def break_connection(database: Any) -> None:
    """Lose it as a restart of the server would, just before the COMMIT."""
    if not isinstance(database, peewee.PostgresqlDatabase):
        database.connection().close()
        return
    backend = database.connection().info.backend_pid
    with contextlib.suppress(peewee.OperationalError, psycopg.OperationalError):
        elsewhere(database, lambda: end_session(database, backend))


ROLLING_BACK = [
    by_exception,
    by_exception_through_nested_blocks,
    by_hand,
    by_session_rollback,
    by_losing_the_connection,
]


@pytest.mark.parametrize("rolling_back", ROLLING_BACK)
def test_nothing_follows_a_rollback_and_the_next_transaction_notifies_as_usual(
    witness: Witness, rolling_back: Callable[[Any, Body], None]
) -> None:
    rolling_back(witness.database, one)
    assert witness.saw_nothing()
    assert witness.swept() == stored() == []
    with witness.database.atomic():
        emit(2)
        assert witness.saw_nothing()
    assert witness.wakes == 1
    assert witness.swept() == stored() == ["2"]


def test_no_event_of_a_rolled_back_savepoint_is_delivered(witness: Witness) -> None:
    with witness.database.atomic():
        emit(1)
        by_exception(witness.database, two)
        emit(3)
    assert witness.wakes == 1
    assert witness.swept() == stored() == ["1", "3"]


def test_a_notification_for_a_rolled_back_savepoint_alone_delivers_nothing(witness: Witness) -> None:
    with witness.database.atomic():
        by_exception(witness.database, one)
    assert witness.swept() == stored() == []


def test_an_error_swallowed_inside_the_transaction_delivers_only_what_was_committed(witness: Witness) -> None:
    with witness.database.atomic():
        emit(1)
        with contextlib.suppress(peewee.PeeweeException):
            witness.database.execute_sql("SELECT no_such_column FROM note")
    # PostgreSQL turns the COMMIT into a ROLLBACK and says nothing; for SQLite only the statement failed.
    survives = not isinstance(witness.database, peewee.PostgresqlDatabase)
    assert witness.swept() == stored() == (["1"] if survives else [])


def test_an_interrupt_during_the_commit_delivers_nothing(witness: Witness, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(witness.database, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt), witness.database.atomic():
            emit(1)
    # Peewee thinks that the transaction is over, and the connection is still in it.
    assert not witness.database.in_transaction()
    assert witness.box.dialect.in_transaction
    assert witness.saw_nothing()
    emit(2)
    assert witness.delivered == []
    witness.database.rollback()
    assert witness.swept() == stored() == []


def test_after_a_rollback_in_the_middle_of_a_block_the_rest_is_notified(witness: Witness) -> None:
    with witness.database.atomic() as transaction:
        emit(1)
        transaction.rollback()
        emit(2)
        emit(3)
    assert witness.wakes == 1
    assert witness.swept() == stored() == ["2", "3"]
    assert witness.box.counters["emitted"] == 2


def test_a_transaction_leaves_one_callback_of_each_kind_however_many_events_it_holds(witness: Witness) -> None:
    with witness.database.atomic():
        emit(1)
        once = len(witness.database._state.commit_callbacks)
        for number in range(2, 20):
            emit(number)
        outbox.emit_many([("Note", 20, "note.written")])
        assert len(witness.database._state.commit_callbacks) == once
    assert witness.wakes == 1
    assert witness.box.counters["emitted"] == 20


def test_callbacks_that_were_dropped_are_not_taken_for_waiting_ones(witness: Witness) -> None:
    with pytest.raises((ZeroDivisionError, peewee.OperationalError)) as kept, witness.database.atomic():  # noqa: PT012
        witness.database.after_commit(fail)
        emit(1)
    assert witness.saw_nothing()
    with witness.database.atomic():
        emit(2)
    assert witness.wakes == 1
    assert kept.value is not None  # and with it, by its traceback, the callbacks that did not run


# Commits that Peewee does not announce, or announces oddly


def test_a_commit_in_the_middle_of_a_block_is_notified(witness: Witness) -> None:
    with witness.database.atomic() as transaction:
        emit(1)
        transaction.commit()
        # Inline waits for the end of the block: a handler could not open a transaction of its own here.
        assert (witness.wakes, witness.delivered) == (0 if witness.inline else 1, [])
        emit(2)
    assert witness.wakes == (1 if witness.inline else 2)
    assert witness.swept() == ["1", "2"]


def test_a_commit_in_the_middle_of_a_block_that_emits_no_more_is_notified_by_its_end(witness: Witness) -> None:
    with witness.database.atomic() as transaction:
        emit(1)
        transaction.commit()
    assert witness.wakes == 1
    assert witness.swept() == ["1"]


@contextlib.contextmanager
def manual_commit(database: Any) -> Iterator[None]:
    """The connection comes first: if it were opened inside, Peewee would forget that it is in such a block."""
    database.connect(reuse_if_open=True)
    with database.manual_commit():
        yield


def test_a_manual_commit_is_stored_and_found_by_a_sweep(witness: Witness) -> None:
    with manual_commit(witness.database):
        witness.database.begin()
        emit(1)
        outbox.emit_many([("Note", 2, "note.written")])
        witness.database.commit()
    assert witness.saw_nothing()
    assert witness.swept() == ["1", "2"]


def test_a_manual_rollback_takes_the_event_back(witness: Witness) -> None:
    with manual_commit(witness.database):
        witness.database.begin()
        emit(1)
        witness.database.rollback()
    assert witness.saw_nothing()
    assert witness.swept() == stored() == []


def test_in_manual_commit_with_nothing_begun_one_event_is_committed_at_once(witness: Witness) -> None:
    with manual_commit(witness.database):
        emit(1)
    assert elsewhere(witness.database, stored) == ["1"]
    assert witness.swept() == ["1"]


def test_in_manual_commit_with_nothing_begun_many_events_are_refused(witness: Witness) -> None:
    with manual_commit(witness.database), pytest.raises(outbox.TransactionRequired):
        outbox.emit_many([("Note", 1, "note.written")])
    assert stored() == []


def begin_by_method(database: Any) -> None:
    database.begin()


def begin_by_statement(database: Any) -> None:
    database.execute_sql("BEGIN")


@pytest.mark.parametrize("begin", [begin_by_method, begin_by_statement])
def test_a_plain_begin_delivers_nothing_before_its_commit(witness: Witness, begin: Callable[[Any], None]) -> None:
    begin(witness.database)
    emit(1)
    outbox.emit_many([("Note", 2, "note.written")])
    assert witness.delivered == []
    assert elsewhere(witness.database, stored) == []
    witness.database.commit()
    assert witness.swept() == ["1", "2"]


@pytest.mark.parametrize("begin", [begin_by_method, begin_by_statement])
def test_a_plain_begin_that_is_rolled_back_delivers_nothing(witness: Witness, begin: Callable[[Any], None]) -> None:
    begin(witness.database)
    emit(1)
    outbox.emit_many([("Note", 2, "note.written")])
    witness.database.rollback()
    assert witness.swept() == stored() == []


def test_a_bare_savepoint_of_sqlite_delivers_nothing_before_it_is_released(witness: Witness) -> None:
    if isinstance(witness.database, peewee.PostgresqlDatabase):
        with pytest.raises(peewee.PeeweeException, match="SAVEPOINT"), witness.database.savepoint():
            pass
        return
    with witness.database.savepoint():
        emit(1)
        assert witness.delivered == []
    assert witness.swept() == ["1"]


def test_a_callback_that_raises_before_ours_loses_the_notification_and_nothing_else(witness: Witness) -> None:
    with pytest.raises((ZeroDivisionError, peewee.OperationalError)), witness.database.atomic():  # noqa: PT012
        witness.database.after_commit(fail)
        emit(1)
    assert witness.saw_nothing()
    assert witness.swept() == stored() == ["1"]
    with witness.database.atomic():
        emit(2)
    assert witness.wakes == 1


def test_a_callback_that_raises_after_ours_loses_nothing(witness: Witness) -> None:
    with pytest.raises((ZeroDivisionError, peewee.OperationalError)), witness.database.atomic():  # noqa: PT012
        emit(1)
        witness.database.after_commit(fail)
    assert witness.wakes == 1
    assert witness.swept() == ["1"]


def fail() -> None:
    raise ZeroDivisionError


def test_another_threads_transaction_is_not_ours(witness: Witness) -> None:
    database = witness.database
    # On SQLite, one that does not keep other writers out until it writes itself.
    with database.atomic() if isinstance(database, peewee.PostgresqlDatabase) else database.atomic("DEFERRED"):
        elsewhere(database, lambda: emit(1))
        assert witness.wakes == 1
        emit(2)
        assert witness.wakes == 1
    assert witness.wakes == 2
    assert witness.swept() == ["1", "2"]


def test_an_event_emitted_in_a_copied_context_is_notified(witness: Witness) -> None:
    with witness.database.atomic():
        contextvars.copy_context().run(emit, 1)
    assert witness.wakes == 1


def test_transactions_on_two_databases_notify_each_its_own_workers(witness: Witness, sqlite_url: str) -> None:
    other_database: Any = open_database(f"{sqlite_url}.other")
    other = Outbox(Settings(dispatch="off"), database=other_database)
    other.create_tables()
    counted = CountedNotifications(other)
    with witness.database.atomic():
        emit(1)
        with other_database.atomic():
            other.emit("Note", 1, "note.written")
        assert (counted.times, witness.wakes) == (1, 0)
    assert (counted.times, witness.wakes) == (1, 1)
    other.notifier.flush()
    other_database.close_all()


# OUTBOX_REQUIRE_TRANSACTION


def test_where_a_transaction_is_required_emitting_outside_one_is_an_error(configure: Configure) -> None:
    box = configure(require_transaction=True)
    for emitting in (emit, lambda: outbox.emit_many([("Note", 1, "note.written")])):
        with pytest.raises(outbox.TransactionRequired, match="OUTBOX_REQUIRE_TRANSACTION"):
            emitting()
    with manual_commit(box.database), pytest.raises(outbox.TransactionRequired):
        emit()
    assert stored() == []


def test_where_a_transaction_is_required_any_kind_of_transaction_is_accepted(configure: Configure) -> None:
    database: Any = configure(require_transaction=True).database
    with database.atomic():
        emit(1)
        outbox.emit_many([("Note", 2, "note.written")])
    database.begin()
    emit(3)
    database.commit()
    with manual_commit(database):
        database.begin()
        emit(4)
        database.commit()
    assert stored() == ["1", "2", "3", "4"]


def test_by_default_no_transaction_is_required(box: Outbox) -> None:
    emit(1)
    outbox.emit_many([("Note", 2, "note.written")])
    assert stored() == ["1", "2"]


# An emit outside a transaction is told of


WARNED = (
    r"emit was called outside a transaction on \S+/\S+: .*no transaction was open, or one is open on another Peewee"
)
FIX = "`outbox.configure(database=db)`"


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_transaction_on_another_database_object_is_a_warning(
    database: Any, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OUTBOX_DATABASE_URL", url)  # and no configure(database=…)
    box = Outbox(Settings.load(dispatch="off", publish_seconds=0))
    own: Any = box.database
    if box.dialect.name == "postgres":  # SQLite lets one connection write at a time
        with database.atomic() as transaction:
            Note.create(text="lost")
            box.emit("Note", 1, "note.written")
            transaction.rollback()
    else:
        box.emit("Note", 1, "note.written")
    (warning,) = warnings_in(caplog)
    assert re.match(WARNED, warning)
    assert place_of(database) in warning
    assert FIX in warning
    secret = urlsplit(url).netloc.rpartition("@")[0]
    assert not secret or secret not in warning
    assert Note.select().count() == 0
    own.close_all()


def test_an_emit_outside_a_transaction_is_logged_once(box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    with box.database.atomic():
        emit(1)
        outbox.emit_many([("Note", 2, "note.written")])
    assert warnings_in(caplog) == []
    outbox.emit_many([("Note", 3, "note.written")])
    assert len(warnings_in(caplog)) == 1
    emit(4)
    outbox.emit_many([("Note", 5, "note.written")])
    assert len(warnings_in(caplog)) == 1


def test_the_warning_says_which_setting_makes_it_an_error(box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    emit(1)
    assert "OUTBOX_REQUIRE_TRANSACTION=true" in warnings_in(caplog)[0]


def test_the_error_names_both_reasons_the_database_and_the_fix(configure: Configure, database: Any) -> None:
    configure(require_transaction=True)
    for _ in range(2):
        with pytest.raises(outbox.TransactionRequired, match=WARNED) as raised:
            emit(1)
        assert place_of(database) in str(raised.value)
        assert FIX in str(raised.value)
    assert stored() == []


# Inline: in the emitter's own thread, and never at its expense


def test_a_failing_handler_never_reaches_the_emitter(configure: Configure) -> None:
    configure(dispatch="inline")
    outbox.handler("*")(lambda _: fail())
    emit(1)
    with outbox.current().database.atomic():
        emit(2)
    assert {(event.status, event.attempts) for event in OutboxEvent.select()} == {("pending", 1)}


def test_a_handler_that_would_end_the_process_does_not(configure: Configure) -> None:
    configure(dispatch="inline")
    outbox.handler("*")(lambda _: sys.exit("enough"))
    emit(1)
    (event,) = OutboxEvent.select()
    assert event.status == "pending"
    assert "SystemExit: enough" in str(event.error_message)


def test_what_a_handler_emits_is_delivered_as_well(configure: Configure) -> None:
    box = configure(dispatch="inline")
    got: list[str] = []

    @outbox.handler("*")
    def count_down(event: outbox.Event) -> None:
        got.append(event.aggregate_id)
        with box.database.atomic():
            Note.create(text=event.aggregate_id)
            if event.aggregate_id != "0":
                emit(int(event.aggregate_id) - 1)

    with box.database.atomic():
        emit(3)
    assert got == ["3", "2", "1", "0"]
    assert {event.status for event in OutboxEvent.select()} == {"delivered"}


def test_a_handler_may_open_a_transaction_after_a_commit_in_the_middle(configure: Configure) -> None:
    box = configure(dispatch="inline")

    @outbox.handler("*")
    def write(event: outbox.Event) -> None:
        with box.database.atomic():
            Note.create(text=event.aggregate_id)

    with box.database.atomic() as transaction:
        emit(1)
        transaction.commit()
        emit(2)
    assert [note.text for note in Note.select()] == ["1", "2"]


def test_a_handler_that_leaves_a_transaction_open_affects_no_other_event(configure: Configure) -> None:
    box = configure(dispatch="inline")
    outbox.handler("*")(lambda _: box.database.begin())
    emit(1)
    assert not box.dialect.in_transaction
    (event,) = OutboxEvent.select()
    assert "transaction was left open" in str(event.error_message)


def test_inline_delivers_more_than_a_batch(configure: Configure) -> None:
    box = configure(dispatch="inline", batch_size=3)
    got: list[str] = []
    outbox.handler("*")(lambda event: got.append(event.aggregate_id))
    with box.database.atomic():
        outbox.emit_many(("Note", number, "note.written") for number in range(10))
    assert got == [str(number) for number in range(10)]


def test_inline_without_the_tables_leaves_the_callers_commit_alone(configure: Configure) -> None:
    box = configure(dispatch="inline")
    with box.database.atomic():
        emit(1)
        box.database.execute_sql("DROP TABLE outbox_event")
        Note.create(text="kept")
    assert [note.text for note in Note.select()] == ["kept"]


def test_off_notifies_no_worker_and_leaves_the_event_to_a_sweep(box: Outbox) -> None:
    got: list[str] = []
    outbox.handler("*")(lambda event: got.append(event.aggregate_id))
    with box.database.atomic():
        emit(1)
    assert got == []
    outbox.process_pending_events()
    assert got == ["1"]
