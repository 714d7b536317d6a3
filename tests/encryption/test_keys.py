"""The keys of OUTBOX_ENCRYPTION_KEYS: which are accepted, and that none is ever shown."""

import base64
import secrets
import sys

import pytest

from outbox.core import Outbox
from outbox.encryption.cipher import make_cipher
from outbox.encryption.keys import new_key, parse_keys
from outbox.errors import SettingsError
from outbox.settings import Settings
from tests.support.encryption import NEW, OLD


def load(keys: object) -> Settings:
    return Settings.load({}, encryption_keys=keys)


def from_environment(keys: str) -> Settings:
    return Settings.load({"OUTBOX_ENCRYPTION_KEYS": keys})


def test_a_key_has_an_id_that_is_made_from_it() -> None:
    made = new_key()
    ((key,), encrypts) = parse_keys(made.text)
    assert key.id == made.id == parse_keys(f" {made.text}\n").keys[0].id
    assert encrypts
    assert made.id not in made.text
    assert len({new_key().id for _ in range(50)}) == 50


def test_both_alphabets_of_base64_are_the_same_key_with_and_without_padding() -> None:
    secret = b"\xfb\xff\xfe" + secrets.token_bytes(29)
    written = [base64.b64encode(secret).decode(), base64.urlsafe_b64encode(secret).decode()]
    assert written[0] != written[1]
    ids = {parse_keys(text).keys[0].id for text in [*written, *(text.rstrip("=") for text in written)]}
    assert len(ids) == 1


def test_several_keys_are_separated_by_any_space_or_given_as_a_list() -> None:
    assert load([NEW.text, OLD.text]).encryption_keys == f"{NEW.text} {OLD.text}"
    assert from_environment(f"  {NEW.text}\n\t{OLD.text} ").encryption_keys == f"{NEW.text} {OLD.text}"
    assert [key.id for key in parse_keys(f"{NEW.text} {OLD.text}").keys] == [NEW.id, OLD.id]


def test_plain_in_the_first_place_leaves_the_keys_for_decryption() -> None:
    keys, encrypts = parse_keys(f"plain {OLD.text}")
    assert ([key.id for key in keys], encrypts) == ([OLD.id], False)


def encoded(size: int) -> str:
    return base64.b64encode(secrets.token_bytes(size)).decode()


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (" ", "must contain a key"),
        ("plain", "must contain a key"),
        ("correct-horse-battery-staple!", "key 1 is not base64"),
        (f"{NEW.text},{OLD.text}", "key 1 is not base64"),
        (encoded(31), "key 1 has 31 bytes"),
        (encoded(33), "key 1 has 33 bytes"),
        (f"{NEW.text} {encoded(16)}", "key 2 has 16 bytes"),
        (base64.b64encode(bytes(32)).decode(), "key 1 is not random"),
        (f"{NEW.text} {OLD.text} {NEW.text}", f"key 3, with the id {NEW.id}, is given twice"),
        (f"{NEW.text} plain", "key 2"),
    ],
    ids=range(10),  # the keys are random, and the names of tests must be the same in every process
)
def test_an_invalid_key_is_refused_without_being_shown(keys: str, problem: str) -> None:
    for load_settings in (load, from_environment):
        with pytest.raises(SettingsError) as refused:
            load_settings(keys)
        assert problem in str(refused.value)
        assert [part for part in keys.replace("plain", "").split() if part in str(refused.value)] == []


@pytest.mark.parametrize("keys", [7, b"bytes", [b"bytes"], {"a": "b"}])
def test_anything_but_text_is_refused(keys: object) -> None:
    with pytest.raises(SettingsError, match="must be a text, or a list of texts"):
        load(keys)


def test_no_repr_shows_a_key() -> None:
    settings = load([NEW.text, OLD.text])
    cipher = make_cipher(settings.encryption_keys)
    shown = f"{settings!r} {cipher!r} {parse_keys(NEW.text)!r}"
    assert NEW.text not in shown
    assert OLD.text not in shown
    assert base64.urlsafe_b64decode(NEW.text).hex() not in shown
    assert f"<Cipher {NEW.id} {OLD.id}>" in shown


def test_keys_without_the_library_are_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(SettingsError, match=r"pip install 'dramatiq-outbox\[encryption\]'"):
        Outbox(load(NEW.text))
    assert Outbox(load(None)).cipher is None
