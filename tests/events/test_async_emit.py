"""`aemit` and its kind: on an asynchronous database the same promises hold, for tasks instead of threads."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import dramatiq
import peewee
import pytest
from dramatiq.brokers.stub import StubBroker
from playhouse.pwasyncio import AsyncSqliteDatabase

import outbox
from outbox import NewEvent, OutboxEvent, current_outbox
from outbox.core import Outbox
from outbox.destinations.handler import Handler
from tests.support.async_database import open_async, run_async
from tests.support.encryption import NEW
from tests.support.notifications import CountedNotifications, replace_wake
from tests.support.servers import PATIENCE_SECONDS

on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("url", ["postgres"], indirect=True)


@dataclass
class Async:
    """An outbox on an asynchronous database."""

    db: Any
    box: Outbox

    def run(self, main: Callable[[], Any]) -> None:
        run_async(self.db, main)

    async def write_note(self, text: str) -> None:
        is_postgres = isinstance(self.db, peewee.PostgresqlDatabase)
        insert = "INSERT INTO note (text) VALUES (%s)" if is_postgres else "INSERT INTO note (text) VALUES (?)"
        await self.db.aexecute_sql(insert, (text,))

    async def roll_back(self, *calls: Callable[[], Awaitable[object]]) -> None:
        """Make these calls in a transaction, or in a savepoint, that an error rolls back."""
        with contextlib.suppress(ZeroDivisionError):
            async with self.db.atomic():
                for call in calls:
                    await call()
                raise ZeroDivisionError


@pytest.fixture
def configure_async(url: str, database: Any) -> Iterator[Callable[..., Async]]:
    opened: list[Any] = []

    def configure(**settings: Any) -> Async:
        db = open_async(url)
        box = outbox.configure(database=db, **{"dispatch": "off", "publish_seconds": 0, **settings})
        opened.append(box)
        return Async(db, box)

    yield configure
    for box in opened:
        box.notifier.flush()
        box.database.close_all()
    current_outbox.registry.clear()
    current_outbox.forget()


@pytest.fixture
def app(configure_async: Callable[..., Async]) -> Async:
    return configure_async()


def stored() -> list[str]:
    return [event.aggregate_id for event in OutboxEvent.select().order_by(OutboxEvent.seq)]


async def emit(number: object, **options: Any) -> OutboxEvent:
    return await outbox.aemit("Note", number, "note.written", {"number": number}, **options)


class TestTransactions:
    """I1 and I7: what a task's transaction commits exists, and nothing else."""

    def test_an_event_exists_if_and_only_if_the_tasks_transaction_commits(self, app: Async) -> None:
        async def main() -> None:
            async with app.db.atomic():
                await app.write_note("kept")
                event = await emit(1)
                assert await app.db.run(lambda: app.box.emit_dialect.in_transaction)
                assert stored() == []  # another connection does not see it before the commit
            assert (event.aggregate_id, event.payload, event.status) == ("1", {"number": 1}, "pending")
            await app.roll_back(lambda: emit(2))

        app.run(main)
        assert stored() == ["1"]

    def test_a_savepoint_that_is_rolled_back_takes_its_events_with_it(self, app: Async) -> None:
        async def main() -> None:
            async with app.db.atomic():
                await emit("outer")
                await app.roll_back(
                    lambda: emit("inner"), lambda: outbox.aemit_many([("Note", "inner too", "note.written")])
                )
                await emit("after")

        app.run(main)
        assert stored() == ["outer", "after"]

    def test_a_duplicate_leaves_the_transaction_usable(self, app: Async) -> None:
        async def main() -> None:
            async with app.db.atomic():
                first = await emit(1)
                with pytest.raises(outbox.DuplicateEvent) as raised:
                    await emit(1)
                assert raised.value.existing_id == first.id
                same = await emit(1, on_duplicate="ignore")
                assert (same.id, same.payload) == (first.id, {"number": 1})
                await emit(2)

        app.run(main)
        assert stored() == ["1", "2"]

    def test_a_cancelled_task_stores_nothing_and_leaves_no_transaction_to_its_neighbours(self, app: Async) -> None:
        emitted = asyncio.Event()

        async def cancelled() -> None:
            async with app.db.atomic():
                await emit("cancelled")
                emitted.set()
                await asyncio.Event().wait()

        async def main() -> None:
            tasks = [asyncio.create_task(cancelled())]
            await emitted.wait()
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert tasks[0].cancelled()
            async with app.db.atomic():
                await emit("kept")

        app.run(main)
        assert stored() == ["kept"]

    @on_postgres
    def test_a_task_cancelled_while_the_insert_waits_stores_nothing(self, app: Async) -> None:
        async def blocked() -> None:
            async with app.db.atomic():
                await emit(1)  # waits for the rival's uncommitted insert of the same key

        async def main() -> None:
            async with app.db.atomic() as rival:
                await emit(1)
                task = asyncio.create_task(blocked())
                waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                while (await app.db.aexecute_sql(waiting)).fetchone()[0] == 0:  # noqa: ASYNC110  (a server's lock)
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert task.cancelled()
                await rival.arollback()
            await asyncio.create_task(blocked())  # the key is free, and the pool's connections are usable

        app.run(main)
        assert stored() == ["1"]

    def test_a_required_transaction_is_that_of_the_task(self, configure_async: Callable[..., Async]) -> None:
        app = configure_async(require_transaction=True)

        async def main() -> None:
            async with app.db.atomic():
                await emit("inside")
                with pytest.raises(outbox.TransactionRequired):
                    await asyncio.create_task(emit("in another task"))

        app.run(main)
        assert stored() == ["inside"]

    def test_an_exception_of_validation_is_raised_before_any_statement(self, app: Async) -> None:
        async def main() -> None:
            with pytest.raises(outbox.InvalidEvent):
                await emit(1, max_attempts=0)

        app.run(main)


class TestEveryParameter:
    """One core: what asyncpg and aiosqlite are given is what psycopg and sqlite3 are given."""

    def test_all_that_emit_takes_is_stored(self, app: Async) -> None:
        due = datetime.now(UTC) + timedelta(hours=2)

        async def main() -> None:
            async with app.db.atomic():
                await emit("due", deliver_after=due, headers={"h": [1, None]}, correlation_id="c", tenant_id="t")
                await emit("later", deliver_after=timedelta(hours=1), max_attempts=9, idempotency_key="k")
                await emit("ordered", ordering_key="key")
                await emit("strict", ordered="strict")
                await emit("held", ordered=True, deliver_after=timedelta(hours=1), hold=True)
                await emit("replaced")
                await emit("replaced", on_duplicate="replace", deliver_after=due)

        app.run(main)
        rows = {event.aggregate_id: event for event in OutboxEvent.select()}
        assert (rows["due"].next_attempt_at, rows["due"].headers) == (due, {"h": [1, None]})
        assert (rows["due"].correlation_id, rows["due"].tenant_id) == ("c", "t")
        assert timedelta(minutes=59) < rows["later"].next_attempt_at - rows["later"].created_at <= timedelta(hours=1)
        assert (rows["later"].max_attempts, rows["later"].idempotency_key) == (9, "k")
        assert (rows["ordered"].ordering_key, rows["strict"].ordering_key) == ("key", "Note:strict")
        assert rows["held"].order_state == "holds"
        assert rows["replaced"].next_attempt_at == due

    def test_emit_many_stores_all_in_order_or_none(self, app: Async) -> None:
        text = 'ü "quoted", {braced}, back\\slash \n 100%s'

        async def main() -> None:
            async with app.db.atomic():
                plain = await outbox.aemit_many(
                    [
                        NewEvent("Note", text, "note.written", {"text": text}, deliver_after=timedelta(hours=1)),
                        NewEvent("Note", "b", "a.first", {"n": Decimal("1.5")}, deliver_after=datetime.now(UTC)),
                    ]
                )
                await outbox.aemit_many([NewEvent("Note", n, "note.written", ordered="strict") for n in range(3)])
                assert [event.aggregate_id for event in plain] == [text, "b"]
                with pytest.raises(outbox.DuplicateEvent):
                    await outbox.aemit_many([("Note", "new", "note.written"), ("Note", 1, "note.written")])

        app.run(main)
        assert stored() == [text, "b", "0", "1", "2"]
        assert OutboxEvent.get(OutboxEvent.aggregate_id == text).payload == {"text": text}

    def test_an_event_is_cancelled_in_the_tasks_transaction(self, app: Async) -> None:
        async def main() -> None:
            async with app.db.atomic():
                event = await emit(1)
                await emit(2, idempotency_key="two")
                assert await outbox.acancel(event)
                assert await outbox.acancel(event_type="note.written", idempotency_key="two")
                assert not await outbox.acancel(event)

        app.run(main)
        assert stored() == []

    def test_encrypted_events_are_read_again(self, configure_async: Callable[..., Async]) -> None:
        app = configure_async(encryption_keys=NEW.text)

        async def main() -> None:
            await emit(1)
            same = await emit(1, on_duplicate="ignore")
            assert same.payload == {"number": 1}
            await emit(1, on_duplicate="replace", headers={"new": True})

        app.run(main)
        row = OutboxEvent.get()
        assert "number" not in json.dumps(row.payload)
        assert app.box.decrypted(row).headers == {"new": True}

    @on_sqlite
    def test_jobs_are_sent_in_the_tasks_transaction(self, app: Async, monkeypatch: pytest.MonkeyPatch) -> None:
        broker = StubBroker()
        monkeypatch.setattr(dramatiq.broker, "global_broker", broker)

        @dramatiq.actor(broker=broker)
        def resize(number: int) -> None: ...

        outbox.transactional(broker, databases=[app.db])

        async def main() -> None:
            async with app.db.atomic():
                message = await outbox.asend(resize, 1)
                later = await outbox.asend_with_options(resize, args=(2,), delay=1000, idempotency_key="two")
                assert (message.args, later.args) == ((1,), (2,))
                await app.db.run(resize.send, 3)  # a plain send in blocking code that the task runs
                with pytest.raises(outbox.AsyncRequired):
                    resize.send(4)
            resize.send(5)  # outside a transaction it is enqueued at once
            await app.roll_back(lambda: outbox.asend(resize, 6))

        app.run(main)
        assert [each.subject or each.event_type for each in OutboxEvent.select()] == ["resize"] * 3
        assert broker.queues["default"].qsize() == 1


class TestAfterCommit:
    """The state between an emit and its commit belongs to the task: many run on one thread."""

    @on_postgres  # SQLite has one writer at a time
    def test_of_interleaved_tasks_each_commit_notifies_once_and_a_rollback_does_not(self, app: Async) -> None:
        counted = CountedNotifications(app.box)
        steps: list[str] = []

        async def transaction(name: str, mine: asyncio.Event, other: asyncio.Event) -> None:
            async with app.db.atomic():
                for number in range(3):
                    await emit(f"{name}{number}")
                    steps.append(name)
                    other.set()
                    await mine.wait()
                    mine.clear()
                other.set()
                if name == "b":
                    raise ZeroDivisionError

        async def main() -> None:
            first, second = asyncio.Event(), asyncio.Event()
            both = transaction("b", first, second), transaction("a", second, first)
            tasks = [asyncio.create_task(each) for each in both]
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_SECONDS)

        app.run(main)
        assert [set(steps[at : at + 2]) for at in (0, 2, 4)] == [{"a", "b"}] * 3
        assert (stored(), counted.times) == (["a0", "a1", "a2"], 1)
        assert app.box.counters["emitted"] == 3

    def test_a_transaction_notifies_once_however_many_events_and_savepoints_it_has(self, app: Async) -> None:
        counted = CountedNotifications(app.box)

        async def main() -> None:
            async with app.db.atomic():
                for number in range(5):
                    await emit(number)
                async with app.db.atomic():
                    await outbox.aemit_many([("Note", number, "note.written") for number in range(5, 9)])
                assert counted.times == 0
            assert 1 <= counted.times <= 2  # asyncpg's savepoints are transactions of their own to Peewee
            before = counted.times
            await emit(9)  # without a transaction: at once
            assert counted.times == before + 1

        app.run(main)
        assert app.box.counters["emitted"] == 10

    def test_a_worker_that_can_not_be_notified_does_not_fail_or_delay_the_commit(
        self, app: Async, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail() -> None:
            raise ConnectionError("no broker")

        replace_wake(app.box, fail)
        app.run(lambda: emit(1))
        app.box.notifier.flush(PATIENCE_SECONDS)
        assert stored() == ["1"]
        assert "Could not notify a worker" in caplog.text

    def test_nothing_is_called_that_a_python_deprecates_and_so_fails_where_warnings_are_errors(
        self, app: Async, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def deprecated(function: object) -> bool:
            raise DeprecationWarning("Python 3.14 warns of asyncio.iscoroutinefunction")

        monkeypatch.setattr(asyncio, "iscoroutinefunction", deprecated)
        counted = CountedNotifications(app.box)

        async def main() -> None:
            await emit(1)
            async with app.db.atomic():
                await emit(2)

        app.run(main)
        assert (stored(), counted.times) == (["1", "2"], 2)


class TestTheLoop:
    def test_the_loop_goes_on_while_a_task_waits_for_the_database(self, app: Async, database: Any) -> None:
        async def main() -> None:
            with database.atomic("IMMEDIATE" if app.box.dialect.name == "sqlite" else None):
                lock = "DELETE FROM note" if app.box.dialect.name == "sqlite" else "LOCK TABLE outbox_event"
                database.execute_sql(lock)
                task = asyncio.create_task(emit(1))
                for _ in range(50):
                    await asyncio.sleep(0.001)
                assert not task.done()
            await task

        app.run(main)
        assert stored() == ["1"]

    def test_blocking_code_is_told_to_await(self, app: Async) -> None:
        async def main() -> None:
            async with app.db.atomic():
                for call in (
                    lambda: outbox.emit("Note", 1, "note.written"),
                    lambda: outbox.emit("Note", 1, "note.written", ordered="strict"),
                    lambda: outbox.emit_many([("Note", 1, "note.written")]),
                ):
                    with pytest.raises(outbox.AsyncRequired, match=r"await outbox.aemit"):
                        call()
                with pytest.raises(outbox.AsyncRequired, match=r"await outbox.acancel"):
                    outbox.cancel(event_type="note.written", idempotency_key="k")

        app.run(main)
        with pytest.raises(outbox.AsyncRequired):
            outbox.emit("Note", 1, "note.written")
        assert stored() == []

    def test_blocking_code_that_a_task_runs_emits_as_it_is(self, app: Async) -> None:
        def place_order() -> None:
            with app.db.atomic():
                outbox.emit("Note", 1, "note.written")

        app.run(lambda: app.db.run(place_order))
        assert stored() == ["1"]

    @on_sqlite
    def test_aemit_on_a_blocking_database_says_what_to_do(self, database: Any, configure: Any) -> None:
        configure()
        with pytest.raises(outbox.SettingsError, match=r"is a blocking EmbeddedDatabase. Call emit instead"):
            asyncio.run(outbox.aemit("Note", 1, "note.written"))

    @on_sqlite
    def test_a_blocking_emit_on_a_loop_is_warned_about_once(
        self, configure: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            for number in range(3):
                outbox.emit("Note", number, "note.written")

        configure()
        outbox.emit("Note", "no loop", "note.written")
        assert "event loop" not in caplog.text
        asyncio.run(main())
        assert caplog.text.count("emit was called on an event loop") == 1
        assert "await outbox.aemit(…)" in caplog.text
        assert "OUTBOX_WARN_IN_EVENT_LOOP=false" in caplog.text
        caplog.clear()
        configure(warn_in_event_loop=False)
        asyncio.run(_emit_on_a_loop())
        assert "event loop" not in caplog.text


async def _emit_on_a_loop() -> None:
    outbox.emit("Note", "silent", "note.written")


class TestTheBlockingDatabaseBesideIt:
    """Workers, reports and commands use blocking connections to the same tables."""

    def test_a_worker_delivers_what_a_task_has_emitted(self, app: Async) -> None:
        got: list[str] = []
        app.box.registry.add(_handler(got))
        app.run(lambda: emit(1))
        assert outbox.process_pending_events() == {"processed": 1, "remaining": 0}
        assert got == ["1"]

    def test_create_tables_works_on_a_loop_too(self, url: str, database: Any) -> None:
        database.execute_sql("DROP TABLE outbox_event")
        box: Any = Outbox(outbox.Settings(dispatch="off", table_prefix="second_"), database=open_async(url))

        async def main() -> None:
            box.create_tables()
            await box.aemit("Note", 1, "note.written")

        run_async(box.application_database, main)
        assert box.process_pending_events() == {"processed": 1, "remaining": 0}
        box.database.close_all()

    def test_the_inbox_refuses_to_claim_where_it_could_not_be_atomic(self, app: Async, database: Any) -> None:
        with pytest.raises(outbox.SettingsError, match="inbox_database"), app.box.inbox.claim("1", "handler"):
            pass
        box = Outbox(app.box.settings, database=app.db, inbox_database=database)
        with box.inbox.claim("1", "handler") as first:
            assert first

    def test_a_database_in_memory_is_refused(self) -> None:
        with pytest.raises(outbox.SettingsError, match="in memory"):
            Outbox(outbox.Settings(dispatch="off"), database=AsyncSqliteDatabase(":memory:"))

    @on_sqlite
    def test_inline_delivery_is_refused(self, configure_async: Callable[..., Async]) -> None:
        with pytest.raises(outbox.SettingsError, match="event loop"):
            configure_async(dispatch="inline")

    @on_sqlite
    def test_a_blocking_database_may_be_given_and_only_beside_an_asynchronous_one(
        self, url: str, database: Any
    ) -> None:
        settings = outbox.Settings(dispatch="off")
        box = Outbox(settings, database=open_async(url), blocking_database=database)
        assert box.database is database
        with pytest.raises(outbox.SettingsError, match="leave it out"):
            Outbox(settings, database=database, blocking_database=database)


def _handler(got: list[str]) -> Handler:
    return Handler(lambda event: got.append(event.aggregate_id), ["*"], "handler")
