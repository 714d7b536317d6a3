"""The doctor's check of encrypted rows."""

import pytest

from outbox.admin.doctor import encryption
from outbox.core import Outbox
from tests.admin.doctor.findings import advice_of, finding_of, findings_of
from tests.admin.doctor.published_processes import publish_process
from tests.conftest import Configure
from tests.support.encryption import NEW, OLD, OTHER, with_keys
from tests.support.table import emit_one


@pytest.fixture
def box(configure: Configure) -> Outbox:
    return configure(encryption_keys=NEW.text)


def test_without_keys_and_encrypted_rows_all_is_well(box: Outbox) -> None:
    plain = with_keys(box)
    plain.emit("Order", 1, "order.placed", {"n": 1})
    found = finding_of(plain, "encryption")
    assert (found.level, found.what) == (
        "ok",
        "Payloads and headers are stored in plain text: OUTBOX_ENCRYPTION_KEYS is not set.",
    )


def test_with_a_key_it_is_named(box: Outbox) -> None:
    emit_one(payload={"n": 1})
    emit_one()
    found = finding_of(box, "encryption")
    assert (found.level, found.what) == ("ok", f"Payloads and headers are encrypted with the key {NEW.id}.")
    assert "plain" in finding_of(with_keys(box, "plain", NEW.text), "encryption").what


@pytest.mark.parametrize("keys", [(), (OTHER.text,)])
def test_unfinished_rows_with_a_key_that_is_missing_are_a_problem(box: Outbox, keys: tuple[str, ...]) -> None:
    for _ in range(2):
        emit_one(payload={"n": 1})
    emit_one(headers={"h": 1})
    found = finding_of(with_keys(box, *keys), "encryption")
    assert found.level == "problem"
    assert f"3 unfinished rows are encrypted with the key {NEW.id}, which this process does not have" in found.what
    assert "outbox fail" in advice_of(found)


def test_ended_rows_with_a_key_that_is_missing_are_a_warning(box: Outbox) -> None:
    box.registry.handler("*", name="keep")(lambda event: None)
    emit_one(payload={"n": 1})
    box.process_pending_events()
    found = finding_of(with_keys(box), "encryption")
    assert found.level == "warning"
    assert f"1 rows that have ended are encrypted with the key {NEW.id}" in found.what


def test_rows_in_plain_text_are_counted_while_encryption_is_on(box: Outbox) -> None:
    with_keys(box).emit_many([("Order", n, "order.placed", {"n": n}) for n in range(3)])
    found = finding_of(box, "encryption")
    assert (found.level, found.what) == (
        "warning",
        "3 rows are in plain text, although OUTBOX_ENCRYPTION_KEYS is set.",
    )
    assert "outbox reencrypt" in advice_of(found)
    assert finding_of(with_keys(box, "plain", NEW.text), "encryption").level == "ok"


def test_rows_with_an_older_key_are_noted(box: Outbox) -> None:
    with_keys(box, OLD.text).emit("Order", 1, "order.placed", {"n": 1})
    found = finding_of(with_keys(box, NEW.text, OLD.text), "encryption")
    assert found.level == "note"
    assert f"1 rows are encrypted with the older key {OLD.id}." in found.what
    assert "before you remove it" in advice_of(found)


def test_it_looks_at_a_bounded_number_of_rows(box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "LOOKED_AT", 5)
    with_keys(box).emit_many([("Order", n, "order.placed", {"n": n}) for n in range(7)])
    assert finding_of(box, "encryption").what.startswith("5 or more rows are in plain text")


def test_no_finding_shows_a_key(box: Outbox) -> None:
    with_keys(box, OLD.text).emit("Order", 1, "order.placed", {"n": 1})
    shown = str(findings_of(box, "encryption"))
    assert NEW.text not in shown
    assert OLD.text not in shown


def test_a_worker_that_lacks_the_key_of_unfinished_rows_is_named(box: Outbox) -> None:
    publish_process(box, host="good", encryption_keys=[OTHER.id, NEW.id])
    publish_process(box, host="bad", encryption_keys=[OTHER.id])
    assert finding_of(box, "encryption").level == "ok"
    emit_one(payload={"n": 1})
    (found,) = [each for each in findings_of(box, "encryption") if each.level == "problem"]
    assert found.what.startswith(f"bad:1 does not have the key {NEW.id}, with which unfinished rows are encrypted")


def test_a_worker_that_would_deliver_ciphertext_is_named(box: Outbox) -> None:
    publish_process(box, host="old")
    emit_one(payload={"n": 1})
    found = finding_of(box, "encryption")
    assert (found.level, found.what[:49]) == ("problem", "old:1 runs a version of the library that does not")
    assert "Stop old:1" in advice_of(found)
