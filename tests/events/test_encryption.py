"""Emitters with OUTBOX_ENCRYPTION_KEYS: what the table holds, and what they get back."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outbox
from outbox.core import Outbox
from outbox.events.encoding import encode_object
from outbox.storage.models import RUN, OutboxEvent
from tests.conftest import Configure
from tests.support.encryption import NEW, OLD, damage, dump, encrypted_payload, texts, with_keys
from tests.support.jobs import charge, row_of, stub_broker
from tests.support.table import another, change, emit, emit_one, statements, stored
from tests.support.thoroughness import thorough

__all__ = ["charge", "stub_broker"]

SECRET, TRACE = "4242 4242 4242 4242", "Bearer s3cr3t"


@pytest.fixture
def box(configure: Configure) -> Outbox:
    return configure(encryption_keys=NEW.text)


def received(box: Outbox) -> list[tuple[bytes, dict[str, Any]]]:
    """Deliver everything that is due; what a handler got."""
    got: list[tuple[bytes, dict[str, Any]]] = []
    box.registry.handler("*", name="keep")(lambda event: got.append((event.body, event.headers)))
    box.process_pending_events()
    return got


def test_plain_text_is_nowhere_in_the_tables(box: Outbox, charge: Any) -> None:
    emit_one(payload={"card": SECRET}, headers={"authorization": TRACE})
    emit(3, payload={"card": SECRET}, headers={"authorization": TRACE})
    emit_one(payload={"card": "other"}, idempotency_key="k")
    outbox.emit("Order", 1, "order.placed", {"card": SECRET}, idempotency_key="k", on_duplicate="replace")
    outbox.emit(
        "Order", 2, "order.kept", {"card": SECRET}, ordering_key="o", deliver_after=datetime(2030, 1, 1, tzinfo=UTC)
    )
    outbox.send(charge, SECRET, token=TRACE)
    assert received(box)[0][0] == json.dumps({"card": SECRET}, separators=(",", ":")).encode()
    box.reporter.report_now()
    shown = dump(box)
    assert SECRET not in shown
    assert TRACE not in shown
    assert "card" not in shown
    assert NEW.text not in shown
    assert shown.count("outbox_encrypted") == 6 + 4 + 2  # payloads, headers, and both of the job


def test_emit_returns_the_event_with_its_plain_payload(box: Outbox) -> None:
    event = outbox.emit("Order", 1, "order.placed", {"card": SECRET}, headers={"a": "b"})
    assert (event.payload, event.headers) == ({"card": SECRET}, {"a": "b"})
    one, two = outbox.emit_many([("Order", 2, "x", {"n": 2}), ("Order", 3, "x", {"n": 3})])
    assert (one.payload, two.payload) == ({"n": 2}, {"n": 3})


def test_a_row_that_the_application_reads_is_encrypted_until_it_asks_for_the_plain_text(box: Outbox) -> None:
    event = stored(emit_one(payload={"card": SECRET}, headers={"a": "b"}))
    assert encrypted_payload(event.payload)
    plain = outbox.decrypted(event)
    assert (plain.payload, plain.headers) == ({"card": SECRET}, {"a": "b"})
    assert (plain.id, plain.seq, plain.event_type) == (event.id, event.seq, event.event_type)
    assert encrypted_payload(event.payload)
    assert outbox.decrypted(plain) is plain


def test_a_row_that_can_not_be_decrypted_is_an_error_that_says_why(box: Outbox) -> None:
    event = emit_one(payload={"card": SECRET})
    for other in (with_keys(box), with_keys(box, OLD.text)):
        with pytest.raises(outbox.EncryptionKeyMissing, match=NEW.id):
            other.decrypted(stored(event))
    damage(stored(event))
    with pytest.raises(outbox.DecryptionError, match="was changed"):
        box.decrypted(stored(event))


def test_ignore_returns_the_existing_event_in_plain_text(box: Outbox) -> None:
    event = emit_one(payload={"card": SECRET}, idempotency_key="k")
    again = outbox.emit("Order", 9, "order.placed", {"card": "x"}, idempotency_key="k", on_duplicate="ignore")
    assert (again.id, again.payload) == (event.id, {"card": SECRET})
    (many,) = outbox.emit_many([("Order", 9, "order.placed", {"card": "x"}, "k")], on_duplicate="ignore")
    assert many.payload == {"card": SECRET}


def test_ignore_returns_the_encrypted_event_to_a_process_without_the_key(box: Outbox) -> None:
    emit_one(payload={"card": SECRET}, idempotency_key="k")
    for other in (with_keys(box), with_keys(box, OLD.text)):
        found = other.emit("Order", 9, "order.placed", idempotency_key="k", on_duplicate="ignore")
        assert encrypted_payload(found.payload)


def test_replace_encrypts_for_the_row_that_stays(box: Outbox) -> None:
    event = emit_one(payload={"card": "old"}, idempotency_key="k")
    new = outbox.emit("Order", 1, "order.placed", {"card": SECRET}, idempotency_key="k", on_duplicate="replace")
    assert (new.id, new.payload) == (event.id, {"card": SECRET})
    assert received(box) == [(b'{"card":"4242 4242 4242 4242"}', {})]


def test_replace_stores_a_new_row_if_the_old_one_was_attempted(box: Outbox) -> None:
    event = emit_one(payload={"card": "old"}, idempotency_key="k")
    change(event, attempts=1)
    new = outbox.emit("Order", 1, "order.placed", {"card": SECRET}, idempotency_key="k", on_duplicate="replace")
    assert new.id != event.id
    assert sorted(body for body, _ in received(box)) == [b'{"card":"4242 4242 4242 4242"}', b'{"card":"old"}']


def test_replace_looks_again_if_the_row_is_deleted_meanwhile(box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    emit_one(payload={"card": "old"}, idempotency_key="k")
    find, others = box.dialect.find_untried, [emit_one]

    def find_and_lose(row: Any) -> UUID | None:
        found = find(row)
        if others:
            others.pop()
            OutboxEvent.delete().execute()
            another(box).emit("Order", 1, "order.placed", {"card": "rival"}, idempotency_key="k")
        return found

    monkeypatch.setattr(box.dialect, "find_untried", find_and_lose)
    outbox.emit("Order", 1, "order.placed", {"card": SECRET}, idempotency_key="k", on_duplicate="replace")
    assert received(box) == [(b'{"card":"4242 4242 4242 4242"}', {})]


def test_a_payload_that_looks_encrypted_is_a_payload(box: Outbox) -> None:
    for each in (box, with_keys(box)):
        looks = {"outbox_encrypted": f"v1:{NEW.id}:QUJDREVGR0g="}
        each.emit("Order", 1, "order.placed", looks, idempotency_key=outbox.UNIQUE)
    assert [body for body, _ in received(box)] == [encode_object(looks, "payload", 1000).encode()] * 2


def test_ignore_returns_a_payload_that_looks_encrypted(box: Outbox) -> None:
    """The application's transaction must not end with an error of ours because of what a customer has put there."""
    looks = {"outbox_encrypted": f"v1:{NEW.id}:QUJDREVGR0g="}
    with box.database.atomic():
        box.emit("Order", 1, "order.placed", looks)
        assert box.emit("Order", 1, "order.placed", {}, on_duplicate="ignore").payload == looks


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON_VALUES)


@given(payload=OBJECTS, headers=OBJECTS)
@thorough(40)
def test_the_bytes_that_are_delivered_are_those_that_emit_encoded(
    box: Outbox, payload: dict[str, Any], headers: dict[str, Any]
) -> None:
    OutboxEvent.delete().execute()
    box.registry.clear()
    emit_one(payload=payload, headers=headers)
    ((body, got),) = received(box)
    assert body == encode_object(payload, "payload", 100_000).encode()
    assert got == json.loads(encode_object(headers, "headers", 100_000))


def test_jobs_and_runs_are_encrypted_too(box: Outbox, charge: Any) -> None:
    message = outbox.send(charge, SECRET)
    change(stored(row_of(message)), kind=RUN)
    ((payload, _),) = texts(box)
    assert payload.startswith('{"outbox_encrypted": "v1:')


def test_send_returns_the_message_of_the_existing_job(box: Outbox, charge: Any) -> None:
    first = outbox.send_with_options(charge, args=(SECRET,), idempotency_key="k")
    again = outbox.send_with_options(charge, args=("x",), idempotency_key="k", on_duplicate="ignore")
    assert (again.message_id, again.args) == (first.message_id, (SECRET,))


def test_with_plain_in_front_new_rows_are_in_plain_text_and_old_ones_are_read(box: Outbox) -> None:
    event = emit_one(payload={"card": SECRET}, idempotency_key="k")
    plain = with_keys(box, "plain", NEW.text)
    plain.emit("Order", 1, "order.kept", {"n": 1})
    assert texts(box)[1] == ('{"n":1}', "{}")
    assert plain.decrypted(stored(event)).payload == {"card": SECRET}
    assert plain.emit("O", 1, "order.placed", idempotency_key="k", on_duplicate="ignore").payload == {"card": SECRET}
    plain.emit("Order", 1, "order.placed", {"n": 2}, idempotency_key="k", on_duplicate="replace")
    assert texts(box)[0] == ('{"n":2}', "{}")


def test_encryption_runs_no_further_statement(box: Outbox) -> None:
    def run(each: Outbox) -> list[str]:
        with statements(box.database) as seen:
            each.emit("Order", 1, "order.placed", {"n": 1}, idempotency_key=outbox.UNIQUE)
            each.emit_many([("Order", n, "order.placed", {"n": n}, outbox.UNIQUE) for n in range(5)])
            each.process_pending_events()
        return seen

    plain = with_keys(box)
    box.registry.handler("*", name="keep")(lambda event: None)
    run(plain)  # the first run looks up what later ones remember
    run(box)
    assert run(box) == run(plain)
