"""The caller's transaction is never poisoned, slowed by the broker, or failed after it has committed."""

from threading import Event as Gate

import pytest

import outbox
from outbox.core import Outbox
from outbox.errors import DuplicateEvent, InvalidEvent
from outbox.storage.models import PENDING
from tests.conftest import Configure, Note
from tests.support.notifications import replace_wake
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import emit_one, passes, statuses, stored


def save(box: Outbox) -> None:
    """Emit in a transaction, as an application does."""
    with box.database.atomic():
        Note.create(text="kept")
        emit_one()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), outbox.Reject("never")])
def test_a_handler_that_fails_inline_never_reaches_the_emitter(configure: Configure, error: BaseException) -> None:
    box = configure(dispatch="inline")

    @outbox.handler("*", name="failing")
    def handle(_: outbox.Event) -> None:
        raise error

    save(box)
    assert Note.select().count() == 1
    assert box.counters["retried"] + box.counters["failed"] == 1


def test_a_broker_that_is_down_fails_no_commit(box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> None:
        raise ConnectionRefusedError("no broker")

    replace_wake(box, refuse)
    for _ in range(3):
        save(box)
        box.notifier.flush()
    assert Note.select().count() == 3
    assert statuses() == {PENDING: 3}
    assert len([record for record in caplog.records if "no broker" in record.getMessage()]) == 1


def test_a_broker_that_hangs_holds_up_no_commit(box: Outbox) -> None:
    called, hanging = Gate(), Gate()

    def hang() -> None:
        called.set()
        hanging.wait(PATIENCE_SECONDS)

    replace_wake(box, hang)
    try:
        for _ in range(3):
            save(box)
        passes(called)
        assert Note.select().count() == 3
        assert not hanging.is_set()
    finally:
        hanging.set()


def test_a_refused_event_leaves_the_transaction_usable(box: Outbox) -> None:
    outbox.emit("Note", 1, "note.created")
    with box.database.atomic():
        with pytest.raises(DuplicateEvent):
            outbox.emit("Note", 1, "note.created")
        with pytest.raises(InvalidEvent):
            outbox.emit("Note", 2, "note.created", {"x": float("nan")})
        Note.create(text="kept")
        event = outbox.emit("Note", 3, "note.created")
    assert Note.select().count() == 1
    assert stored(event).status == PENDING
