"""Values of keys that look like secrets are not shown, at any depth and in any spelling."""

import pytest

from outbox.admin.masking import MASKED, Masking
from outbox.settings import DEFAULT_MASKED_KEYS

MASKING = Masking(DEFAULT_MASKED_KEYS)


@pytest.mark.parametrize(
    "key",
    [
        "password", "PASSWORD", "user_password", "newPassword", "passwd", "client_secret", "Client-Secret", "token",
        "accessToken", "X-Auth-Token", "Authorization", "api_key", "apiKey", "X-API-Key", "api.key", "API KEY",
        "private_key", "Set-Cookie", "credentials",
    ],
)  # fmt: skip
def test_keys_that_sound_like_secrets_are_masked(key: str) -> None:
    assert MASKING.masked({key: "hush"}) == {key: MASKED}


@pytest.mark.parametrize("key", ["name", "pass", "key", "author", "idempotency_key", "email", ""])
def test_others_are_not(key: str) -> None:
    assert MASKING.masked({key: "shown"}) == {key: "shown"}


@pytest.mark.parametrize("value", ["hush", 7, None, True, ["hush"], {"a": "hush"}, [{"a": "hush"}]])
def test_whatever_stands_behind_such_a_key_is_masked_whole(value: object) -> None:
    assert MASKING.masked([{"a": [{"token": value}]}]) == [{"a": [{"token": MASKED}]}]


def test_what_is_nested_beyond_all_measure_is_not_looked_through() -> None:
    value: object = {"password": "hush"}
    for _ in range(500):
        value = [value]
    assert "hush" not in str(MASKING.masked(value))


def test_what_is_given_stays_as_it_is() -> None:
    given = {"a": [{"password": "hush"}]}
    MASKING.masked(given)
    assert given == {"a": [{"password": "hush"}]}


def test_a_list_without_words_masks_nothing() -> None:
    assert Masking(" , -").masked({"password": "shown"}) == {"password": "shown"}
