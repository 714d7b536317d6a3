"""Idempotency keys are unique for all tenants together: no tenant is given, or changes, the event of another."""

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox import OutboxEvent
from outbox.core import Outbox
from outbox.events.new_event import OnDuplicate

KEPT_APART: list[tuple[str | None, str | None]] = [("acme", "umbrella"), (None, "umbrella"), ("acme", None)]
RETURNING: list[OnDuplicate] = ["ignore", "replace"]


def emit(tenant: str | None, text: str, on_duplicate: OnDuplicate = "raise") -> OutboxEvent:
    return outbox.emit("Note", 1, "note.written", {"text": text}, tenant_id=tenant, on_duplicate=on_duplicate)


def stored() -> list[tuple[str | None, dict[str, str], str]]:
    return [(event.tenant_id, event.payload, event.idempotency_key) for event in OutboxEvent.select()]


@pytest.mark.parametrize("on_duplicate", RETURNING)
@pytest.mark.parametrize(("first", "second"), KEPT_APART)
def test_an_event_of_another_tenant_is_neither_returned_nor_changed(
    box: Outbox, on_duplicate: OnDuplicate, first: str | None, second: str | None
) -> None:
    existing = emit(first, "theirs")
    with box.database.atomic():
        with pytest.raises(outbox.TenantMismatch, match="make the tenant a part of the key") as raised:
            emit(second, "ours", on_duplicate)
        outbox.emit("Note", 2, "note.written")  # the transaction can continue
    assert raised.value.existing_id == existing.id
    assert "theirs" not in str(raised.value)
    assert stored() == [(first, {"text": "theirs"}, "Note:1"), (None, {}, "Note:2")]


def test_an_attempted_event_of_another_tenant_keeps_its_key(box: Outbox) -> None:
    emit("acme", "theirs")
    with box.dialect.connection():
        box.dialect.run("UPDATE outbox_event SET attempts = 1")
    with pytest.raises(outbox.TenantMismatch):
        emit("umbrella", "ours", "replace")
    assert stored() == [("acme", {"text": "theirs"}, "Note:1")]


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_within_a_tenant_duplicates_are_returned_and_replaced_as_before(box: Outbox, tenant: str | None) -> None:
    first = emit(tenant, "first")
    assert emit(tenant, "second", "ignore").id == first.id
    assert stored() == [(tenant, {"text": "first"}, "Note:1")]
    assert emit(tenant, "third", "replace").id == first.id
    assert stored() == [(tenant, {"text": "third"}, "Note:1")]


def test_the_tenant_of_the_context_counts(box: Outbox) -> None:
    with outbox.context(tenant_id="acme"):
        first = emit(None, "first")
        assert emit("acme", "second", "ignore").id == first.id
    with pytest.raises(outbox.TenantMismatch):
        emit(None, "ours", "ignore")


@pytest.mark.parametrize("on_duplicate", RETURNING)
def test_emit_many_stores_none_if_one_of_them_is_another_tenants(box: Outbox, on_duplicate: OnDuplicate) -> None:
    emit("acme", "theirs")
    events = [outbox.NewEvent("Note", number, "note.written", tenant_id="umbrella") for number in (2, 1)]
    with pytest.raises(outbox.TenantMismatch):
        outbox.emit_many(events, on_duplicate=on_duplicate)
    assert stored() == [("acme", {"text": "theirs"}, "Note:1")]


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> dramatiq.Actor[[str], None]:
    broker = StubBroker()
    monkeypatch.setattr(dramatiq.broker, "global_broker", broker)

    @dramatiq.actor(broker=broker)
    def remind(text: str) -> None: ...

    return remind


@pytest.mark.parametrize("on_duplicate", RETURNING)
def test_a_job_of_another_tenant_is_neither_returned_nor_changed(
    box: Outbox, actor: dramatiq.Actor[[str], None], on_duplicate: OnDuplicate
) -> None:
    with outbox.context(tenant_id="acme"):
        outbox.send_with_options(actor, args=("theirs",), idempotency_key="daily")
    with (
        outbox.context(tenant_id="umbrella"),
        pytest.raises(outbox.TenantMismatch, match="A job of the actor 'remind' with the idempotency key 'daily'"),
    ):
        outbox.send_with_options(actor, args=("ours",), idempotency_key="daily", on_duplicate=on_duplicate)
    assert OutboxEvent.get().payload["args"] == ["theirs"]
