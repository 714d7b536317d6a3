"""Values of keys that look like secrets are not shown, at any depth and in any spelling."""

import json

import pytest

from outbox.admin.masking import MASKED, Masking
from outbox.settings import DEFAULT_MASKED_KEYS

MASKING = Masking(DEFAULT_MASKED_KEYS)


@pytest.mark.parametrize(
    "key",
    [
        "password", "PASSWORD", "user_password", "newPassword", "passwd", "client_secret", "Client-Secret", "token",
        "accessToken", "X-Auth-Token", "Authorization", "api_key", "apiKey", "X-API-Key", "api.key", "API KEY",
        "private_key", "Set-Cookie", "credentials", "pwd", "db_pwd", "DbPwd", "passphrase", "session", "sessionId",
        "jwt", "otp", "otpCode", "access_key", "AWS_ACCESS_KEY_ID", "accessKey", "signature", "X-Signature",
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


@pytest.mark.parametrize("name", ["name", "key", "Field", "header", "parameter"])
@pytest.mark.parametrize("value", ["value", "Value", "values", "content"])
def test_a_name_and_a_value_in_an_object_are_a_key_and_its_value(name: str, value: str) -> None:
    given = {name: "Password", value: "hush", "type": "text"}
    assert MASKING.masked([given]) == [given | {value: MASKED}]
    assert MASKING.masked({name: "city", value: "Paris"}) == {name: "city", value: "Paris"}


def test_a_name_and_a_value_in_a_list_are_a_key_and_its_value() -> None:
    headers = [["Authorization", "Bearer hush"], ["Accept", "*/*"]]
    assert MASKING.masked({"headers": headers}) == {"headers": [["Authorization", MASKED], ["Accept", "*/*"]]}
    assert MASKING.masked(["token"]) == ["token"]
    assert MASKING.masked(["the token", "of", "the day"]) == ["the token", "of", "the day"]


def test_the_other_values_beside_a_name_are_shown() -> None:
    given = {"name": "Token Ring Ltd", "city": "Paris", "orders": [1, 2]}
    assert MASKING.masked(given) == given


@pytest.mark.parametrize(
    "text",
    [
        '{"user": "ann", "password": "hush"}',
        ' [{"token": "hush"}]',
        '{"body": "{\\"pwd\\": \\"hush\\"}"}',
        json.dumps(json.dumps({"jwt": "hush"})),
        '{"name": "otp", "value": "hush"}',
    ],
)
def test_json_inside_a_text_is_masked(text: str) -> None:
    masked = MASKING.masked({"body": text})
    assert "hush" in text
    assert "hush" not in masked["body"]
    json.loads(masked["body"])


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "hush"}\n{"a": 1}\n{"password": "hush"}',  # lines of JSON
        '{"a": {"password": "hush"}, "a": 1}',  # json.loads keeps the last
        '{"password": "hu\\"sh hush", "b": "cut o',
        '{"b": 1, "password": "hush\\',
        '[1, {"token" : 4711, "b": 2}, ',
        '{"body": "{\\"pwd\\": \\"h\\\\\\"ush\\", \\"a\\": 1}", ',
        '{"\\u0070assword": "hush", ',
        'refused: {"session": {"id": "hush"}, "b": 1',
        "logged {'password': 'hush'} twice",
    ],
)
def test_json_that_is_a_part_of_a_text_or_cut_off_is_masked(text: str) -> None:
    masked = MASKING.masked({"body": text})["body"]
    assert MASKED in masked
    assert not any(secret in masked for secret in ("hush", "ush", "sh hush", "4711"))
    assert masked.startswith(text[:2])


def test_parts_of_json_are_found_in_time_in_proportion_to_the_text() -> None:
    """With a square in it, each of these would take hours."""
    for part in ('"', '\\"', '":', '"\\', '"password":"', '\\"password\\":\\"', "'a':", '"a": '):
        assert MASKING.masked(part * (600_000 // len(part)))


@pytest.mark.parametrize("text", ['{"a":  1}', "[1,2", "{", '"quoted"', "[" * 100_000, "password: shown", '{"n": 1e3}'])
def test_a_text_in_which_nothing_is_masked_stays_to_the_byte(text: str) -> None:
    assert MASKING.masked({"body": text}) == {"body": text}


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
