"""`outbox reencrypt`: which rows it changes, and that it can be interrupted and run beside everything else."""

from collections.abc import Generator
from datetime import timedelta
from typing import Any

import pytest

import outbox
import outbox.operations.reencrypt as reencrypt_module
from outbox.core import Outbox
from outbox.errors import SettingsError
from outbox.operations.reencrypt import DECRYPT, REENCRYPT, Progress, reencrypt
from outbox.storage.models import OutboxEvent
from outbox.telemetry import audit
from outbox.telemetry.audit import Operator
from tests.conftest import Configure
from tests.support.encryption import NEW, OLD, OTHER, damage, texts, with_keys
from tests.support.table import change, claimed, emit, emit_one, locking, on_postgres, statements, stored

WHO = "alice@host"


@pytest.fixture
def box(configure: Configure) -> Outbox:
    return configure(encryption_keys=f"{NEW.text} {OLD.text}")


@pytest.fixture
def got(box: Outbox) -> list[Any]:
    seen: list[Any] = []
    box.registry.handler("*", name="keep")(lambda event: seen.append((event.payload, event.headers)))
    return seen


def walk(box: Outbox, **options: Any) -> Generator[Progress]:
    return reencrypt(box.dialect, box.cipher, operator=Operator(WHO), sleep=lambda _: None, **options)


def run(box: Outbox, **options: Any) -> Progress:
    *_, progress = walk(box, **options)
    return progress


def keys_of(box: Outbox) -> list[str]:
    """The key id of each payload, or "" for one in plain text."""
    return [payload.split(":")[2] if payload.startswith('{"outbox_encrypted": "') else "" for payload, _ in texts(box)]


def fill(box: Outbox) -> None:
    """A row in plain text, one with the old key, and one with the new key."""
    for number, each in enumerate((with_keys(box), with_keys(box, OLD.text), box)):
        each.emit("Order", number, "order.placed", {"n": number}, headers={"h": number})


def test_every_row_gets_the_first_key(box: Outbox, got: list[Any]) -> None:
    fill(box)
    assert keys_of(box) == ["", OLD.id, NEW.id]
    before = texts(box)[2]
    progress = run(box)
    assert (progress.looked_at, progress.changed, progress.is_complete) == (3, 2, True)
    assert keys_of(box) == [NEW.id] * 3
    assert texts(box)[2] == before
    with_keys(box, NEW.text).process_pending_events()
    assert got == [({"n": n}, {"h": n}) for n in range(3)]


def test_a_second_run_changes_nothing(box: Outbox) -> None:
    fill(box)
    run(box)
    before = texts(box)
    assert run(box).changed == 0
    assert texts(box) == before


def test_decrypt_stores_every_row_in_plain_text(box: Outbox) -> None:
    fill(box)
    progress = run(box, decrypt=True)
    assert (progress.looked_at, progress.changed) == (3, 2)
    assert texts(box) == [(f'{{"n":{n}}}', f'{{"h":{n}}}') for n in range(3)]
    assert run(box, decrypt=True).changed == 0


def test_rows_that_have_ended_are_changed_and_keep_their_times(box: Outbox, got: list[Any]) -> None:
    plain = with_keys(box)
    plain.emit("Order", 1, "order.placed", {"n": 1})
    plain.process_pending_events()
    before = OutboxEvent.get()
    run(box)
    after = OutboxEvent.get()
    unchanged = {name for name in before.__data__ if before.__data__[name] == after.__data__[name]}
    assert set(before.__data__) - unchanged == {"payload"}


def test_a_dry_run_counts_and_changes_nothing(box: Outbox) -> None:
    fill(box)
    before = texts(box)
    with statements(box.database) as seen:
        progress = run(box, dry_run=True)
    assert (progress.looked_at, progress.changed) == (3, 2)
    assert texts(box) == before
    assert [each for each in seen if not each.startswith("SELECT")] == []
    assert audit.latest(box.dialect) == []


def test_the_walk_is_in_batches(box: Outbox) -> None:
    events = emit(7, payload={"n": 1})
    progress, seen = [], []
    for each in walk(with_keys(box, OLD.text, NEW.text), batch_size=3):
        progress.append((each.looked_at, each.changed))
        seen.append(each.last_id)
    assert progress == [(3, 3), (6, 6), (7, 7)]
    assert seen == [events[2].id, events[5].id, events[6].id]


def test_it_can_be_interrupted_and_resumed(box: Outbox) -> None:
    with_keys(box).emit_many([("Order", n, "order.placed", {"n": n}) for n in range(6)])
    steps = walk(box, batch_size=2)
    first = next(steps)
    reached = first.last_id
    steps.close()
    assert keys_of(box) == [NEW.id] * 2 + [""] * 4
    assert run(box, after=reached).looked_at == 4
    assert keys_of(box) == [NEW.id] * 6


def test_rows_that_are_emitted_meanwhile_are_left_to_their_emitters(box: Outbox) -> None:
    plain = with_keys(box)
    plain.emit_many([("Order", n, "order.placed", {"n": n}) for n in range(4)])
    for _ in walk(box, batch_size=2):
        plain.emit("Late", 1, "order.placed", {"n": 1}, idempotency_key=outbox.UNIQUE)
    assert keys_of(box)[:4] == [NEW.id] * 4
    assert set(keys_of(box)[4:]) == {""}


def test_a_row_under_a_lease_is_skipped_and_reported(box: Outbox, got: list[Any]) -> None:
    with_keys(box).emit_many([("Order", n, "order.placed", {"n": n}) for n in range(3)])
    change(
        OutboxEvent.get(OutboxEvent.aggregate_id == "2"), next_attempt_at=outbox.current().dialect.now() + timedelta(1)
    )
    claimed(box, 2)
    progress = run(box)
    assert (progress.looked_at, progress.changed, progress.skipped, progress.is_complete) == (3, 1, 2, False)
    assert keys_of(box) == ["", "", NEW.id]
    change(lease_until=box.dialect.now() - timedelta(hours=1))
    assert run(box).changed == 2


def test_a_row_that_was_replaced_meanwhile_is_left_as_it_is(box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = with_keys(box)
    plain.emit("Order", 1, "order.placed", {"n": 1})
    real = reencrypt_module._changes

    def replace_afterwards(*read: Any, **options: Any) -> Any:
        changes = real(*read, **options)
        plain.emit("Order", 1, "order.placed", {"n": 2}, on_duplicate="replace")
        return changes

    monkeypatch.setattr(reencrypt_module, "_changes", replace_afterwards)
    progress = run(box)
    assert (progress.changed, progress.skipped) == (0, 1)
    assert texts(box) == [('{"n":2}', "{}")]


@on_postgres
def test_a_row_that_another_transaction_has_locked_is_skipped(box: Outbox, url: str) -> None:
    plain = with_keys(box)
    event = plain.emit("Order", 1, "order.placed", {"n": 1})
    plain.emit("Order", 2, "order.placed", {"n": 2})
    with locking(url, event.id):
        progress = run(box)
    assert (progress.changed, progress.skipped) == (1, 1)
    assert keys_of(box) == ["", NEW.id]


def test_rows_that_can_not_be_decrypted_are_left_and_counted(box: Outbox) -> None:
    with_keys(box, OTHER.text).emit("Order", 1, "order.placed", {"n": 1})
    bad = with_keys(box, OLD.text).emit("Order", 2, "order.placed", {"n": 2})
    damage(stored(bad))
    good = with_keys(box).emit("Order", 3, "order.placed", {"n": 3})
    before = texts(box)
    progress = run(box)
    assert (progress.changed, dict(progress.missing_keys), progress.damaged) == (1, {OTHER.id: 1}, 1)
    assert not progress.is_complete
    assert texts(box)[:2] == before[:2]
    assert box.decrypted(stored(good)).payload == {"n": 3}


@pytest.mark.parametrize(("decrypt", "name"), [(False, REENCRYPT), (True, DECRYPT)])
def test_it_is_in_the_audit_log(box: Outbox, decrypt: bool, name: str) -> None:
    fill(box)
    run(box, decrypt=decrypt)
    (entry,) = audit.latest(box.dialect)
    assert (entry.who, entry.action, entry.affected) == (WHO, name, 2)
    assert entry.ended_at is not None


def test_it_needs_a_key_that_encrypts(box: Outbox) -> None:
    with pytest.raises(SettingsError, match="OUTBOX_ENCRYPTION_KEYS is not set"):
        run(with_keys(box))
    plain = with_keys(box, "plain", NEW.text)
    with pytest.raises(SettingsError, match="begins with `plain`"):
        run(plain)
    emit_one(payload={"n": 1})
    assert run(plain, decrypt=True).changed == 1


def test_no_more_rows_a_second_than_asked_for(box: Outbox) -> None:
    with_keys(box).emit_many([("Order", n, "order.placed", {"n": n}) for n in range(5)])
    waits: list[float] = []
    list(reencrypt(box.dialect, box.cipher, operator=Operator(WHO), per_second=2, sleep=waits.append))
    assert len(waits) == 2
    assert all(0 < wait <= 1 for wait in waits)


def test_an_empty_table_is_complete(box: Outbox) -> None:
    assert list(walk(box)) == []
