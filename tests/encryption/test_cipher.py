"""What the cipher promises: the same bytes come out, and only for the row and column that they were encrypted for."""

from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.encryption.cipher import Cipher, decrypt
from outbox.encryption.keys import parse_keys
from outbox.encryption.stored_text import is_encrypted, key_id_of, text_of
from outbox.errors import DecryptionError, EncryptionKeyMissing
from tests.support.encryption import NEW, OLD, OTHER
from tests.support.thoroughness import thorough

ROW = uuid4()
TEXT = '{"card":"4242 4242","name":"Grüße 🎉"}'
HEADERS = '{"authorization":"Bearer abc"}'


def cipher(*keys: str) -> Cipher:
    return Cipher(parse_keys(" ".join(keys)))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(id=st.uuids(), payload=TEXTS, headers=TEXTS)
@thorough(200)
def test_what_goes_in_comes_out_to_the_byte(id: UUID, payload: str, headers: str) -> None:
    stored = cipher(NEW.text).encrypt(id, payload, headers)
    assert decrypt(cipher(OLD.text, NEW.text), id, *stored) == (payload, headers)


def test_a_stored_text_is_json_that_names_its_key() -> None:
    payload, headers = cipher(NEW.text, OLD.text).encrypt(ROW, TEXT, HEADERS)
    assert payload.startswith(f'{{"outbox_encrypted": "v1:{NEW.id}:')
    assert key_id_of(payload) == key_id_of(headers) == NEW.id
    assert "4242" not in payload
    assert "Bearer" not in headers


def test_the_same_text_is_never_stored_twice_in_the_same_form() -> None:
    one = cipher(NEW.text)
    assert len({one.encrypt(ROW, TEXT, HEADERS)[0] for _ in range(100)}) == 100


def test_an_empty_object_is_stored_as_it_is() -> None:
    assert cipher(NEW.text).encrypt(ROW, "{}", "{}") == ("{}", "{}")


def test_a_text_of_another_row_or_column_is_refused() -> None:
    one = cipher(NEW.text)
    payload, headers = one.encrypt(ROW, TEXT, HEADERS)
    for id, moved in ((uuid4(), (payload, "{}")), (ROW, (headers, "{}")), (ROW, ("{}", payload))):
        with pytest.raises(
            DecryptionError, match="it was changed after it was encrypted, or it belongs to another row"
        ):
            one.decrypt(id, *moved)


@pytest.mark.parametrize("position", range(-1, -60, -7))
def test_a_changed_text_is_refused(position: int) -> None:
    one = cipher(NEW.text)
    payload, _ = one.encrypt(ROW, TEXT, "{}")
    changed = payload[:position] + ("A" if payload[position] != "A" else "B") + payload[position:][1:]
    with pytest.raises(DecryptionError) as refused:
        one.decrypt(ROW, changed, "{}")
    assert not isinstance(refused.value, EncryptionKeyMissing)


@pytest.mark.parametrize("data", ["", "AAAA", "A", "====", "not base64!", "QUJD" * 9])
def test_a_text_that_is_cut_or_no_base64_is_refused(data: str) -> None:
    for one in (cipher(NEW.text), None):
        with pytest.raises(DecryptionError):
            decrypt(one, ROW, f'{{"outbox_encrypted": "v1:{NEW.id}:{data}"}}', "{}")


def test_a_missing_key_is_named_by_its_id() -> None:
    stored = cipher(OLD.text).encrypt(ROW, TEXT, HEADERS)
    for one in (cipher(NEW.text, OTHER.text), None):
        with pytest.raises(
            EncryptionKeyMissing, match=f"encrypted with the key {OLD.id}, which this process"
        ) as missing:
            decrypt(one, ROW, *stored)
        assert missing.value.key_id == OLD.id


def test_a_format_of_a_later_version_waits_for_a_process_that_knows_it() -> None:
    with pytest.raises(EncryptionKeyMissing, match="format v2"):
        cipher(NEW.text).decrypt(ROW, f'{{"outbox_encrypted": "v2:{NEW.id}:QUJD"}}', "{}")


@pytest.mark.parametrize(
    "value",
    [None, 7, "text", [], {}, {"a": 1}, {"outbox_encrypted": 7}, {"outbox_encrypted": "v1:x"},
     {"outbox_encrypted": f"v1:{NEW.id}:QUJD", "more": 1}, {"outbox_encrypted": f"v1:{NEW.id}:QUJD "}],
)  # fmt: skip
def test_no_other_value_is_taken_for_an_encrypted_one(value: object) -> None:
    assert text_of(value) is None
    assert text_of({"outbox_encrypted": f"v1:{NEW.id}:QUJD"}) is not None


def test_an_object_that_looks_like_it_in_the_encoding_of_emit_is_not_encrypted() -> None:
    assert not is_encrypted('{"outbox_encrypted":"v1:12345678:QUJD"}')
