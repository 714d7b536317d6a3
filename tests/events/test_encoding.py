"""From Python values to the exact bytes that every handler sees, or a refusal that says why."""

import json
from collections import OrderedDict, UserDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import outbox
from outbox import current_outbox
from outbox.core import Outbox
from outbox.events.encoding import DEEPEST, encode_object
from tests.conftest import Configure

PLENTY = 1_000_000


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


class Word(StrEnum):
    HELLO = "hello"


@dataclass
class Line:
    article: str
    price: Decimal


@dataclass
class Order:
    id: UUID
    lines: list[Line]


def encode(value: object) -> str:
    return encode_object(value, "payload", PLENTY)


def refusal(value: object, limit: int = PLENTY) -> str:
    with pytest.raises(outbox.InvalidEvent) as raised:
        encode_object(value, "payload", limit)
    return str(raised.value)


# What has a form


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (-0.1, "-0.1"),
        (10**40, "1" + "0" * 40),
        ("é🐙", '"é🐙"'),
        ((1, 2), "[1,2]"),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC), '"2026-01-02T03:04:05.000678+00:00"'),
        (datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=45))), '"2026-01-02T00:00:00+05:45"'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (Decimal("0.10"), '"0.10"'),
        (Colour.RED, '"red"'),
        (Size.LARGE, "3"),
        (Word.HELLO, '"hello"'),
        (Line("tea", Decimal("2.50")), '{"article":"tea","price":"2.50"}'),
        (MappingProxyType({"a": 1}), '{"a":1}'),
        (UserDict({"a": UUID(int=0)}), '{"a":"00000000-0000-0000-0000-000000000000"}'),
    ],
    ids=repr,
)
def test_values_are_encoded(value: object, text: str) -> None:
    assert encode({"v": value}) == f'{{"v":{text}}}'
    assert encode({"v": [{"w": value}]}) == f'{{"v":[{{"w":{text}}}]}}'


def test_none_is_the_empty_object() -> None:
    assert encode(None) == encode({}) == "{}"


def test_a_dataclass_is_an_object() -> None:
    order = Order(UUID(int=1), [Line("tea", Decimal(3))])
    assert json.loads(encode(order)) == {"id": str(UUID(int=1)), "lines": [{"article": "tea", "price": "3"}]}


class Model(pydantic.BaseModel):
    total: int


def test_a_pydantic_model_is_refused_by_its_name_with_what_to_do() -> None:
    with pytest.raises(
        outbox.InvalidEvent, match=r"not the Pydantic model Model: pass payload\.model_dump\(mode='json'\), or"
    ):
        encode(Model(total=1))
    expected = (
        r"^payload\['order'\] can't be written as JSON: Model has no JSON form; pass its model_dump\(mode='json'\)\.$"
    )
    with pytest.raises(outbox.InvalidEvent, match=expected):
        encode({"order": Model(total=1)})


@pytest.mark.parametrize("mapping", [UserDict({"a": 1}), MappingProxyType({"a": 1}), OrderedDict(a=1)], ids=repr)
def test_any_mapping_is_an_object(mapping: Mapping[str, int]) -> None:
    assert encode(mapping) == '{"a":1}'


def test_keys_keep_their_order_and_their_doubles() -> None:
    assert encode({"z": 1, "a": 2, 1: 3, "1": 4, "A": 5}) == '{"z":1,"a":2,"1":3,"1":4,"A":5}'


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(TEXT, children, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(TEXT, JSON, max_size=5))
def test_any_json_object_is_decoded_as_it_was_encoded(value: dict[str, Any]) -> None:
    assert json.loads(encode(value)) == value


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3))
def test_any_text_is_stored_as_it_is_or_refused(value: dict[str, str]) -> None:
    texts = "".join([*value, *value.values()])
    if "\x00" in texts or any("\ud800" <= letter <= "\udfff" for letter in texts):
        assert "payload contains a" in refusal(value)
    else:
        assert json.loads(encode(value)) == value


# What has none


@pytest.mark.parametrize(
    "value", [[], [{}], "{}", b"{}", 1, 1.5, True, {1}, Line, object()], ids=lambda value: type(value).__name__
)
def test_what_is_not_an_object_is_refused(value: object) -> None:
    assert "payload must be a JSON object" in refusal(value)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), Decimal("NaN"), Decimal("Infinity"), Decimal("-Infinity")]
)
def test_nan_and_infinities_are_refused(value: object) -> None:
    assert "payload['a'][0]['b'] can't be written as JSON" in refusal({"a": [{"b": value}]})
    assert "payload can't be written as JSON" in refusal({value: 1})


@pytest.mark.parametrize("value", ["\x00", "a\x00b", "\\\x00", "\\\\\x00", "\\u0000\x00"], ids=repr)
def test_nul_is_refused(value: str) -> None:
    assert "payload contains a NUL character" in refusal({"a": [value]})
    assert "payload contains a NUL character" in refusal({value: 1})


@pytest.mark.parametrize("value", ["\\u0000", "\\\\u0000", "\\\\\\u0000", "u0000", "\\", "\\x00"])
def test_text_that_only_looks_like_nul_is_kept(value: str) -> None:
    assert json.loads(encode({"a": value, value: 1})) == {"a": value, value: 1}


@pytest.mark.parametrize("value", ["\ud800", "a\udfffb", "\ude00\ud83d"], ids=ascii)
def test_lone_surrogates_are_refused(value: str) -> None:
    assert "payload contains a lone surrogate" in refusal({"a": [value]})
    assert "payload contains a lone surrogate" in refusal({value: 1})


def test_a_naive_datetime_is_refused_and_named() -> None:
    message = refusal({"at": datetime(2026, 1, 2, 3, 4)})  # noqa: DTZ001
    assert "2026-01-02 03:04:00 has no timezone" in message
    assert "datetime.now(UTC)" in message


@pytest.mark.parametrize("value", [time(1, 2), timedelta(1), {1, 2}, b"x", 1j, object, len], ids=repr)
def test_what_json_has_no_form_for_is_refused_and_named(value: object) -> None:
    assert f"{type(value).__name__} has no JSON form" in refusal({"a": value})


def test_keys_that_json_has_no_form_for_are_refused() -> None:
    assert "payload can't be written as JSON: keys must be" in refusal({UUID(int=1): 1})


def test_a_value_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["self"] = value
    assert "payload can't be written as JSON: Circular reference" in refusal(value)


def nested(depth: int, *, in_lists: bool = False) -> dict[str, Any]:
    """An object of `depth` levels."""
    value: Any = {} if not in_lists else []
    for _ in range(depth - 2):
        value = [value] if in_lists else {"a": value}
    return {"a": value}


@pytest.mark.parametrize("in_lists", [True, False])
def test_nesting_is_bounded(in_lists: bool) -> None:
    assert json.loads(encode(nested(DEEPEST, in_lists=in_lists))) == nested(DEEPEST, in_lists=in_lists)
    for depth in (DEEPEST + 1, 985, 990, 1_000, 100_000):
        assert f"payload is nested too deeply; the limit is {DEEPEST} levels" in refusal(
            nested(depth, in_lists=in_lists)
        )


def test_many_brackets_are_not_deep() -> None:
    wide = {"a": [[], {}] * 500, "b": '"[{' * 500, "c": "\\" * 3 + "[{" * 500}
    assert json.loads(encode(wide)) == wide


@pytest.mark.parametrize("letter", ["x", "é", "🐙", "\n"])
def test_the_size_limit_is_exact_in_bytes(letter: str) -> None:
    value = {"text": letter * 50}
    size = len(encode(value).encode())
    assert encode_object(value, "payload", size)
    assert refusal(value, size - 1) == (
        f"payload is {size} bytes of JSON; the limit is {size - 1} (OUTBOX_MAX_PAYLOAD_BYTES)."
    )


def test_the_size_limit_is_256_kib_by_default_and_can_be_set(configure: Configure) -> None:
    configure()
    room = 256 * 1024 - len('{"t":""}')
    outbox.emit("Note", 1, "note.written", {"t": "x" * room})
    with pytest.raises(outbox.InvalidEvent, match="262145 bytes of JSON; the limit is 262144"):
        outbox.emit("Note", 2, "note.written", {"t": "x" * (room + 1)})
    configure(max_payload_bytes=10)
    outbox.emit("Note", 2, "note.written", {"t": "xx"})
    with pytest.raises(outbox.InvalidEvent, match="payload is 11 bytes of JSON; the limit is 10"):
        outbox.emit("Note", 3, "note.written", {"t": "xxx"})


def test_the_headers_are_bounded_like_the_payload(configure: Configure) -> None:
    configure(max_payload_bytes=10)
    with pytest.raises(outbox.InvalidEvent, match="headers is 11 bytes of JSON; the limit is 10"):
        outbox.emit("Note", 3, "note.written", headers={"t": "xxx"})


# The bytes that are delivered


TELLING: list[dict[Any, Any]] = [
    {},
    {"z": 1, "a": 2, "Z": 3},
    {1: "a", "1": "b", None: "c"},
    {"text": 'é🐙 \u2028 " \\ \\u0000 / \x7f \x1f \t'},
    {"numbers": [1e22, 1.0, -0.0, 10**30, 0.1 + 0.2]},
    {"nested": nested(DEEPEST - 1)},
    {"amount": Decimal("1.10"), "at": datetime(2026, 1, 1, tzinfo=UTC)},
]


def test_a_handler_gets_the_emitted_bytes_at_every_attempt(configure: Configure) -> None:
    box = configure(backoff_base_seconds=0, max_attempts=3)
    got: dict[str, list[bytes]] = {}

    @outbox.handler("*")
    def refuse(event: outbox.Event) -> None:
        got.setdefault(event.aggregate_id, []).append(event.body)
        raise ValueError

    for number, payload in enumerate(TELLING):
        outbox.emit("Note", number, "note.written", payload, headers={"z": 1, "a": 2})
    for _ in range(3):
        box.process_pending_events()
    assert got == {str(number): [encode(payload).encode()] * 3 for number, payload in enumerate(TELLING)}


def test_a_handler_gets_payload_and_headers_decoded(box: Outbox) -> None:
    got: list[Any] = []
    outbox.handler("*")(lambda event: got.append((event.payload, event.headers)))
    outbox.emit("Note", 1, "note.written", {"n": [1, {"é": None}]}, headers={"trace": "t"})
    outbox.process_pending_events()
    assert got == [({"n": [1, {"é": None}]}, {"trace": "t"})]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=st.dictionaries(TEXT, JSON, max_size=5))
def test_whatever_is_emitted_is_delivered_to_the_byte(box: Outbox, payload: dict[str, Any]) -> None:
    got: list[bytes] = []
    current_outbox.registry.clear()
    outbox.handler("*")(lambda event: got.append(event.body))
    event = outbox.emit("Note", 1, "note.written", payload, idempotency_key=outbox.UNIQUE)
    outbox.process_pending_events()
    assert got == [encode(payload).encode()]
    assert event.payload == payload
