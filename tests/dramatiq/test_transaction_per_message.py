"""An outbox worker delivers although the application's middleware runs every message in a transaction."""

from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import peewee
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import Middleware

import outbox
from outbox.core import Outbox
from outbox.dramatiq import actors
from outbox.dramatiq.actor_names import CLEANUP, DELIVER
from outbox.dramatiq.broker import install_middleware
from outbox.storage.models import InboxMessage
from outbox.storage.timestamp import EARLIEST
from tests.conftest import Note
from tests.support.table import becomes_true, emit, statuses


@pytest.fixture(params=["postgres_url", "sqlite_url"])
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(request.param)
    return url


class TransactionPerMessage(Middleware):
    """Takes a note of each message, in a transaction that it commits if the message succeeds."""

    def __init__(self, box: Outbox) -> None:
        self._database = box.database
        self.errors: list[BaseException] = []

    def before_process_message(self, broker: Any, message: Any) -> None:
        self._database.connect(reuse_if_open=True)
        self._database.session_start()
        Note.create(text=f"before {message.actor_name}")

    def after_process_message(self, broker: Any, message: Any, *, result: Any = None, exception: Any = None) -> None:
        try:
            Note.create(text=f"after {message.actor_name}")
            self._database.session_commit() if exception is None else self._database.session_rollback()
        except Exception as error:
            self.errors.append(error)
            raise
        finally:
            self._database.close()


@pytest.fixture
def middleware(box: Outbox) -> TransactionPerMessage:
    return TransactionPerMessage(box)


@pytest.fixture
def send(box: Outbox, middleware: TransactionPerMessage) -> Iterator[Callable[[str], None]]:
    """A worker of one thread, and a function that sends a message to one of its actors and waits for its end."""

    @outbox.handler("*", name="note")
    def note(event: outbox.Event) -> None:
        with box.database.atomic():
            Note.create(text=f"handled {event.aggregate_id}")

    broker = StubBroker()
    broker.add_middleware(middleware)
    install_middleware(broker)
    actors.declare_actors(broker, box.settings)
    box.become_worker()
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=50)
    worker.start()

    def send(name: str) -> None:
        broker.get_actor(name).send()
        broker.join(box.settings.queue)
        worker.join()

    yield send
    worker.stop()


def noted() -> list[str]:
    return [note.text for note in Note.select().order_by(peewee.SQL("id"))]


def test_its_handlers_write_and_the_middlewares_transaction_is_committed(
    middleware: TransactionPerMessage, send: Callable[[str], None]
) -> None:
    emit(2)
    send(DELIVER)
    becomes_true(lambda: statuses() == {"delivered": 2})  # a drain may return before its shares end
    assert sorted(noted()) == [f"after {DELIVER}", f"before {DELIVER}", "handled 0", "handled 1"]
    assert middleware.errors == []


def test_it_cleans_up(box: Outbox, middleware: TransactionPerMessage, send: Callable[[str], None]) -> None:
    with box.inbox.claim("7", "ledger"):
        pass
    InboxMessage.update(processed_at=EARLIEST).execute()
    send(CLEANUP)
    assert InboxMessage.select().count() == 0
    assert noted() == [f"before {CLEANUP}", f"after {CLEANUP}"]
    assert middleware.errors == []
