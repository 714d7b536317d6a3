"""Whatever is given to emit is refused before any SQL, or stored and read back to the byte."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outbox
from outbox.core import Outbox
from outbox.storage import timestamp
from outbox.storage.models import OutboxEvent
from tests.conftest import Note
from tests.fuzz.anything import texts, things, values
from tests.support.table import statements
from tests.support.thoroughness import thorough

good = {
    "aggregate_type": st.text("abc", min_size=1, max_size=5),
    "aggregate_id": st.integers(0, 9),
    "event_type": st.just("thing.happened"),
}
odd = {
    "aggregate_type": things,
    "aggregate_id": things,
    "event_type": things,
    "payload": st.dictionaries(texts, values, max_size=3) | values,
    "headers": st.dictionaries(texts, values, max_size=3) | values,
    "idempotency_key": st.just(outbox.UNIQUE) | things,
    "correlation_id": things,
    "tenant_id": things,
    "max_attempts": st.integers(0, 1_001) | things,
    "deliver_after": st.timedeltas() | st.datetimes(timezones=st.timezones()) | things,
    "on_duplicate": st.sampled_from(["raise", "ignore"]) | things,
}
# One or two are odd, so that the others don't hide what becomes of them.
arguments = st.lists(st.sampled_from(sorted(odd)), max_size=2, unique=True).flatmap(
    lambda names: st.fixed_dictionaries(good | {name: odd[name] for name in names})
)


@thorough(250)
@given(arguments=arguments)
def test_it_is_refused_before_any_sql_or_stored_as_it_was_given(box: Outbox, arguments: dict[str, Any]) -> None:
    OutboxEvent.delete().execute()
    with box.database.atomic():
        with statements(box.database) as seen:
            event = emitted(arguments)
        Note.create(text="the transaction goes on")
    if event is None:
        assert seen == []
        assert OutboxEvent.select().count() == 0
    else:
        check_stored(box, event, arguments)


def emitted(arguments: dict[str, Any]) -> OutboxEvent | None:
    """None if it was refused; any other error is none that a caller could expect."""
    try:
        return outbox.emit(**arguments)
    except outbox.InvalidEvent:
        return None


def check_stored(box: Outbox, event: OutboxEvent, given: dict[str, Any]) -> None:
    columns = "payload::text, headers::text" if box.dialect.name == "postgres" else "payload, headers"
    ((payload, headers),) = box.database.execute_sql(f"SELECT {columns} FROM outbox_event").fetchall()  # noqa: S608
    row = OutboxEvent.get()
    fields = [name for name in OutboxEvent._meta.fields if name not in ("payload", "headers")]
    assert {name: getattr(row, name) for name in fields} == {name: getattr(event, name) for name in fields}
    assert (json.loads(payload), json.loads(headers)) == (event.payload, event.headers)
    assert "\x00" not in payload + headers
    for name in ("aggregate_type", "event_type", "correlation_id", "tenant_id"):
        assert getattr(row, name) == given.get(name)
    assert row.aggregate_id == str(given["aggregate_id"])
    if isinstance(given.get("idempotency_key"), str):
        assert row.idempotency_key == given["idempotency_key"]
    if isinstance(given.get("deliver_after"), timedelta):
        assert abs(row.next_attempt_at - row.created_at - given["deliver_after"]) < timedelta(seconds=1)
    elif given.get("deliver_after") is not None:
        assert timestamp.to_text(row.next_attempt_at) == timestamp.to_text(given["deliver_after"])


@thorough(100)
@given(items=st.lists(arguments | things | st.lists(things, max_size=5), max_size=3))
def test_many_are_refused_together_before_any_sql_or_stored_together(box: Outbox, items: list[Any]) -> None:
    OutboxEvent.delete().execute()
    with statements(box.database) as seen:
        try:
            events = outbox.emit_many([_without_choice(item) for item in items])
        except outbox.InvalidEvent:
            assert seen == []
            events = []
        except outbox.DuplicateEvent:
            events = []
    assert OutboxEvent.select().count() == len(events)


def _without_choice(item: Any) -> Any:
    """What to do about duplicates is asked for all of them, not for each."""
    return {name: value for name, value in item.items() if name != "on_duplicate"} if isinstance(item, dict) else item


@thorough(150)
@given(message_id=things, handler_name=texts)
def test_the_inbox_refuses_an_id_before_any_sql_or_knows_it_again(
    box: Outbox, message_id: Any, handler_name: str
) -> None:
    with statements(box.database) as seen:
        try:
            with outbox.inbox.claim(message_id, handler_name):
                pass
        except outbox.InvalidMessage:
            assert seen == []
            return
    with outbox.inbox.claim(message_id, handler_name) as first:
        assert not first


def test_a_number_that_python_does_not_write_out_is_refused(box: Outbox) -> None:
    with pytest.raises(outbox.InvalidEvent, match="aggregate_id"):
        outbox.emit("Thing", 10**5000, "thing.happened")
