import outbox
from outbox.core import Outbox
from tests.conftest import Note


def test_an_event_is_delivered_after_the_commit(box: Outbox) -> None:
    got = []
    outbox.handler("note.*")(lambda event: got.append(event.payload))
    with box.database.atomic():
        note = Note.create(text="x")
        outbox.emit("Note", note.id, "note.created", {"n": 1})
    assert outbox.process_pending_events() == {"processed": 1, "remaining": 0}
    assert got == [{"n": 1}]
