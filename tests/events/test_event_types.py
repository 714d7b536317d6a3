"""Typed events: declared classes, their versions, the upcasters between them, and what handlers get."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NotRequired, TypedDict
from uuid import UUID

import attrs
import pydantic
import pytest
import typing_extensions
from hypothesis import given, settings
from hypothesis import strategies as st

import outbox
from outbox.consumer.entry import Entry, event_of
from outbox.core import Outbox
from outbox.destinations import stream
from outbox.events.cloudevents import binary, structured
from outbox.events.envelope import as_dict, as_json
from outbox.events.event_types import EventTypes, event_types
from outbox.storage.models import DELIVERED, FAILED, PENDING
from tests.conftest import Configure
from tests.support.encryption import NEW
from tests.support.program import run_python
from tests.support.table import error_of, let_pass, stored


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Line:
    article: str
    price: Decimal


@dataclass(frozen=True)
class OfDataclass:
    id: UUID
    total: Decimal
    placed_at: datetime
    day: date | None
    lines: list[Line]
    by_article: dict[str, Line] = field(default_factory=dict)
    colour: Colour = Colour.RED
    way: Literal["post", "courier"] = "post"
    parent: OfDataclass | None = None


@attrs.frozen
class OfAttrs:
    id: UUID
    total: Decimal = attrs.field(validator=attrs.validators.ge(Decimal(0)))
    lines: list[Line] = attrs.Factory(list)


class OfPydantic(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)
    id: UUID
    total: Decimal
    lines: list[Line] = pydantic.Field(default=[], alias="Lines")


class OfTypedDict(TypedDict):
    id: UUID
    total: Decimal
    lines: NotRequired[list[Line]]


class OfTypingExtensions(typing_extensions.TypedDict):
    id: UUID


ID = UUID(int=7)
LINE = Line("tea", Decimal("2.50"))
OBJECTS: list[tuple[type, Any]] = [
    (
        OfDataclass,
        OfDataclass(
            ID,
            Decimal("9.90"),
            datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
            date(2026, 1, 2),
            [LINE],
            {"tea": LINE},
            way="courier",
            parent=OfDataclass(ID, Decimal(1), datetime(2026, 1, 1, tzinfo=UTC), None, []),
        ),
    ),
    (OfAttrs, OfAttrs(ID, Decimal("9.90"), [LINE])),
    (OfPydantic, OfPydantic(id=ID, total=Decimal("9.90"), Lines=[LINE])),
    (OfTypedDict, {"id": ID, "total": Decimal("9.90"), "lines": [LINE]}),
    (OfTypingExtensions, {"id": ID}),
]


@pytest.fixture(autouse=True)
def _no_declarations() -> Iterator[None]:
    """Each test declares its own."""
    event_types.clear()
    yield
    event_types.clear()


def emitted(box: Outbox, *args: Any, **options: Any) -> outbox.OutboxEvent:
    with box.database.atomic():
        return outbox.emit("Order", 7, *args, idempotency_key=outbox.UNIQUE, **options)


def data_of(event_type: Any) -> list[Any]:
    """Register a handler; return the data that it gets."""
    got: list[Any] = []
    register: Any = outbox.handler(event_type, name="taker")
    register(lambda event: got.append(event.data))
    return got


def register(cls: type) -> None:
    register: Any = outbox.handler(cls)
    register(lambda event: None)


def refusal(declare: Callable[[], object]) -> str:
    with pytest.raises(outbox.RegistrationError) as raised:
        declare()
    return str(raised.value)


class TestEveryKindOfClass:
    @pytest.mark.parametrize(("cls", "value"), OBJECTS, ids=lambda each: getattr(each, "__name__", ""))
    def test_is_read_as_it_was_emitted(self, box: Outbox, cls: type, value: Any) -> None:
        outbox.event("order.placed")(cls)
        got = data_of(cls)
        event = emitted(box, cls, value) if isinstance(value, dict) else emitted(box, value)
        box.process_pending_events()
        assert (stored(event).status, error_of(event)) == (DELIVERED, "None")
        assert got == [value]
        assert isinstance(value, dict) or isinstance(got[0], cls)
        assert (event.event_type, event.headers) == ("order.placed", {"event_version": 1})

    @pytest.mark.parametrize(("cls", "value"), OBJECTS[:3], ids=lambda each: getattr(each, "__name__", ""))
    def test_may_be_emitted_as_a_dict_of_the_class(self, box: Outbox, cls: type, value: Any) -> None:
        outbox.event("order.placed")(cls)
        got = data_of(cls)
        emitted(box, cls, emitted(box, value).payload)
        emitted(box, cls, value)
        box.process_pending_events()
        assert got == [value] * 3

    def test_is_emitted_by_emit_many(self, box: Outbox) -> None:
        outbox.event("order.placed")(OfAttrs)
        got = data_of(OfAttrs)
        value = OBJECTS[1][1]
        with box.database.atomic():
            outbox.emit_many(
                [("Order", 1, value), outbox.NewEvent("Order", 2, value, ordering_key="k"), ("Order", 3, "a")]
            )
        outbox.handler("a", name="other")(lambda _: None)
        box.process_pending_events()
        assert got == [value, value]

    def test_keeps_other_headers(self, box: Outbox) -> None:
        outbox.event("order.placed", version=1)(OfAttrs)
        event = emitted(box, OBJECTS[1][1], headers={"source": "shop"})
        assert event.headers == {"source": "shop", "event_version": 1}

    def test_is_read_from_an_encrypted_row(self, configure: Configure) -> None:
        box = configure(encryption_keys=NEW.text)
        outbox.event("order.placed")(OfAttrs)
        got = data_of(OfAttrs)
        emitted(box, OBJECTS[1][1])
        box.process_pending_events()
        assert got == [OBJECTS[1][1]]

    def test_is_read_again_after_a_replay(self, box: Outbox) -> None:
        outbox.event("order.placed")(OfAttrs)
        got = data_of(OfAttrs)
        event = emitted(box, OBJECTS[1][1])
        for _ in range(2):
            box.process_pending_events()
            outbox.OutboxEvent.update(status="failed", delivered_at=None, next_attempt_at=None).execute()
            box.retry_failed_events()
        assert got == [OBJECTS[1][1]] * 2
        assert stored(event).payload["total"] == "9.90"


@dataclass
class Plain:
    total: int


class TestEmitting:
    def test_text_is_what_it_was(self, box: Outbox) -> None:
        class Type(StrEnum):
            PLACED = "order.placed"

        outbox.event("order.placed")(Plain)
        for event_type in ("order.placed", Type.PLACED):
            assert (emitted(box, event_type, {"total": 1}).headers, emitted(box, event_type).event_type) == (
                {},
                "order.placed",
            )

    def test_untyped_costs_no_call_into_the_declarations(self, box: Outbox) -> None:
        outbox.event("order.placed")(Plain)
        seen: set[str] = set()
        outbox.handler("*", name="taker")(lambda event: event.payload)
        sys.setprofile(lambda frame, what, _: seen.add(frame.f_code.co_filename) if what == "call" else None)
        try:
            emitted(box, "order.placed", {"total": 1})
            box.process_pending_events()
        finally:
            sys.setprofile(None)
        declarations = Path(outbox.__file__).parent / "events"
        called = {Path(name).name for name in seen if Path(name).parent == declarations}
        assert "validate.py" in called
        assert called.isdisjoint({"event_types.py", "typed_payload.py"})

    def test_an_object_of_a_class_that_is_not_declared_is_refused(self, box: Outbox) -> None:
        outbox.event("order.placed")(Plain)

        @dataclass
        class Derived(Plain):
            pass

        for value in (Derived(1), Derived):
            with pytest.raises(outbox.InvalidEvent, match=r"declared with @outbox\.event: .*Derived is not declared"):
                emitted(box, value)
        with pytest.raises(outbox.InvalidEvent, match="event_type must be text, not int"):
            emitted(box, 7)

    def test_two_payloads_and_none_are_refused(self, box: Outbox) -> None:
        outbox.event("order.placed")(Plain)
        with pytest.raises(outbox.InvalidEvent, match="payload must be left out"):
            emitted(box, Plain(1), {"total": 2})
        with pytest.raises(outbox.InvalidEvent, match="payload must be an object of Plain, or a dict"):
            emitted(box, Plain)

    def test_a_value_that_json_does_not_have_is_refused_by_its_name(self, box: Outbox) -> None:
        outbox.event("order.placed")(Plain)
        with pytest.raises(outbox.InvalidEvent, match=r"payload\['total'\] can't be written as JSON"):
            emitted(box, Plain({1, 2}))  # type: ignore[arg-type]


@dataclass(frozen=True)
class V1:
    total: str


@dataclass(frozen=True)
class V3:
    total: Decimal
    currency: str
    lines: list[Line] = field(default_factory=list)


def add_currency(payload: dict[str, Any]) -> dict[str, Any]:
    return payload | {"currency": "EUR"}


def with_decimal(payload: dict[str, Any]) -> dict[str, Any]:
    payload["total"] = Decimal(payload["total"])
    return payload


class TestVersions:
    @pytest.fixture(autouse=True)
    def _declared(self) -> None:
        outbox.event("order.placed", version=1)(V1)
        outbox.event("order.placed", version=3)(V3)
        outbox.upcaster("order.placed", from_version=1)(add_currency)
        outbox.upcaster("order.placed", from_version=2)(with_decimal)

    def test_upcasters_run_in_a_chain_on_a_copy(self, box: Outbox) -> None:
        got: list[tuple[Any, Any]] = []
        outbox.handler(V3, name="taker")(lambda event: got.append((event.data, event.payload)))
        events = [
            emitted(box, V1("5")),
            emitted(box, "order.placed", {"total": "6", "currency": "USD"}, headers={"event_version": 2}),
            emitted(box, V3(Decimal(7), "GBP")),
            emitted(box, "order.placed", {"total": "8"}),
        ]
        before = [stored(each).payload for each in events]
        box.process_pending_events()
        assert [data for data, _ in got] == [
            V3(Decimal(5), "EUR"),
            V3(Decimal(6), "USD"),
            V3(Decimal(7), "GBP"),
            V3(Decimal(8), "EUR"),
        ]
        assert [payload for _, payload in got] == before == [stored(each).payload for each in events]
        assert before[0] == {"total": "5"}

    def test_an_event_that_can_not_be_read_costs_its_handler_an_attempt_and_names_the_field(self, box: Outbox) -> None:
        called: list[Any] = []
        outbox.handler(V3, name="typed")(called.append)
        outbox.handler("*", name="other")(called.append)
        bad = emitted(
            box,
            "order.placed",
            {"total": "hush", "currency": "EUR", "lines": [{"article": "tea", "price": []}]},
            headers={"event_version": 3},
        )
        good = emitted(box, V3(Decimal(1), "EUR"))
        box.process_pending_events()
        assert stored(good).status == DELIVERED
        assert stored(bad).status == PENDING
        progress = stored(bad).progress
        assert progress["other"]["state"] == DELIVERED
        assert (progress["typed"]["attempts"], progress["typed"]["reason"]) == (1, "unreadable")
        assert "UnreadableEvent: can't be read as 'order.placed' version 3" in error_of(bad)
        assert "$.total: " in error_of(bad)
        assert "hush" not in error_of(bad)
        assert len(called) == 3

    def test_it_fails_like_any_other_after_its_attempts_and_can_be_retried(self, box: Outbox) -> None:
        outbox.handler(V3, name="typed", max_attempts=1)(lambda _: None)
        event = emitted(box, "order.placed", {}, headers={"event_version": 3})
        box.process_pending_events()
        assert (stored(event).status, stored(event).progress["typed"]["reason"]) == (FAILED, "unreadable")
        assert "$.total: is missing" in error_of(event)
        outbox.OutboxEvent.update(payload={"total": 1, "currency": "EUR"}).execute()
        box.retry_failed_events()
        box.process_pending_events()
        assert stored(event).status == DELIVERED

    def test_a_newer_one_waits_for_a_newer_worker_at_no_cost(self, configure: Configure) -> None:
        box = configure(max_age_hours=0)
        called: list[Any] = []
        outbox.handler(V3, name="typed", max_attempts=1)(called.append)
        outbox.handler("*", name="other")(lambda _: None)
        newer = [emitted(box, "order.placed", {}, headers={"event_version": 4}) for _ in range(7)]
        for _ in range(3):
            box.process_pending_events()
            let_pass(hours=100)
        good = emitted(box, V3(Decimal(1), "EUR"))
        box.process_pending_events()
        assert stored(good).status == DELIVERED, "the circuit breaker of the handler is closed"
        for each in newer:
            entry = stored(each).progress["typed"]
            assert (stored(each).status, entry.get("attempts"), entry["reason"]) == (PENDING, None, "newer_version")
            assert "version 4" in error_of(each)
        outbox.event("order.placed", version=4)(Plain)
        outbox.upcaster("order.placed", from_version=3)(lambda payload: payload)
        let_pass(hours=1)
        with pytest.raises(outbox.RegistrationError, match=r"handler typed takes .*V3.*, and the latest version is"):
            box.check_registered()
        assert len(called) == 1

    def test_order_is_kept_behind_a_newer_one(self, box: Outbox) -> None:
        got: list[Any] = []
        outbox.handler(V3, name="typed")(lambda event: got.append(event.data))
        newer = emitted(
            box, "order.placed", {"total": 1, "currency": "EUR"}, headers={"event_version": 4}, ordered=True
        )
        behind, other = emitted(box, V3(Decimal(2), "EUR"), ordered=True), emitted(box, V3(Decimal(3), "EUR"))
        for _ in range(2):
            box.process_pending_events()
            let_pass(hours=1)
        assert [stored(each).status for each in (newer, behind, other)] == [PENDING, PENDING, DELIVERED]

        @outbox.event("order.placed", version=4)
        @dataclass(frozen=True)
        class V4(V3):
            pass

        outbox.upcaster("order.placed", from_version=3)(lambda payload: payload)
        box.registry.clear()
        outbox.handler(V4, name="typed")(lambda event: got.append(event.data))
        for _ in range(2):
            box.process_pending_events()
            let_pass(hours=1)
        assert got == [V3(Decimal(3), "EUR"), V4(Decimal(1), "EUR"), V4(Decimal(2), "EUR")]

    @pytest.mark.parametrize(
        ("headers", "why"),
        [
            ({"event_version": "3"}, "no whole number"),
            ({"event_version": 0}, "no whole number"),
            ({"event_version": True}, "no whole number"),
        ],
        ids=str,
    )
    def test_a_version_that_is_none_can_not_be_read(self, box: Outbox, headers: Any, why: str) -> None:
        outbox.handler(V3, name="typed")(lambda _: None)
        event = emitted(box, "order.placed", {"total": 1}, headers=headers)
        box.process_pending_events()
        assert why in error_of(event)

    def test_an_upcaster_that_fails_is_named(self, box: Outbox) -> None:
        outbox.handler(V3, name="typed")(lambda _: None)
        event, other = emitted(box, "order.placed", {}), emitted(box, "order.placed", {"total": [1, 2, 3, 4]})
        box.process_pending_events()
        assert "with_decimal of 'order.placed' from version 2 raised KeyError: 'total'" in error_of(event)
        assert "with_decimal of 'order.placed' from version 2 raised ValueError" in error_of(other)

    @pytest.mark.parametrize("returned", [None, [1], {"total": {1}}, {"x": float("nan")}], ids=repr)
    def test_an_upcaster_that_returns_no_object_is_named(self, returned: Any) -> None:
        types = EventTypes()
        types.event("a", version=2)(Plain)
        types.upcaster("a", from_version=1)(lambda _: returned)
        with pytest.raises(outbox.UnreadableEvent, match=r"the upcaster .*<lambda> of 'a' from version 1"):
            types.read("a", "{}", {})

    def test_data_is_what_an_untyped_handler_may_read_too(self, box: Outbox) -> None:
        got = data_of("order.*")
        emitted(box, V1("5"))
        other = emitted(box, "order.cancelled")
        box.process_pending_events()
        assert got == [V3(Decimal(5), "EUR")]
        assert "no class is declared for 'order.cancelled' (@outbox.event): use event.payload" in error_of(other)

    def test_data_is_decoded_once(self, box: Outbox) -> None:
        got: list[bool] = []
        outbox.handler(V3, name="typed")(lambda event: got.append(event.data is event.data))
        emitted(box, V1("5"))
        box.process_pending_events()
        assert got == [True]

    def test_the_oldest_version_that_is_read_can_be_raised(self) -> None:
        types = EventTypes()
        types.event("a", version=3, oldest=2)(Plain)
        assert "upcaster from version 2" in refusal(lambda: types.check("a"))
        types.upcaster("a", from_version=2)(lambda payload: payload)
        assert types.check("a").cls is Plain
        with pytest.raises(outbox.UnreadableEvent, match="'a' version 1 is no longer read: the oldest is 2"):
            types.read("a", '{"total":1}', {})
        assert types.read("a", '{"total":1}', {"event_version": 2}) == Plain(1)


class TestDeclarations:
    def test_a_gap_in_the_chain_is_refused_when_a_handler_is_registered(self) -> None:
        outbox.event("order.placed", version=4)(V3)
        outbox.upcaster("order.placed", from_version=2)(add_currency)
        said = refusal(lambda: register(V3))
        assert "'order.placed' version 4 (tests.events.test_event_types.V3) has no upcaster from version 1, 3" in said
        assert "from_version=1) above the handlers, or pass oldest=4" in said

    def test_an_upcaster_that_leads_nowhere_is_refused(self) -> None:
        outbox.event("order.placed", version=1)(V1)
        outbox.upcaster("order.placed", from_version=1)(add_currency)
        assert "add_currency is declared as an upcaster of 'order.placed' from version 1, but the latest" in refusal(
            lambda: register(V1)
        )

    def test_a_handler_of_an_older_version_is_refused(self) -> None:
        outbox.event("order.placed", version=1)(V1)
        outbox.event("order.placed", version=2)(V3)
        outbox.upcaster("order.placed", from_version=1)(add_currency)
        assert "takes tests.events.test_event_types.V1, and the latest version is" in refusal(lambda: register(V1))

    def test_duplicates_are_refused_with_both_places(self) -> None:
        outbox.event("order.placed")(V1)
        assert "V3) can't be declared: 'order.placed' version 1 (tests.events.test_event_types.V1) is" in refusal(
            lambda: outbox.event("order.placed")(V3)
        )
        assert "'order.placed' version 1 (tests.events.test_event_types.V1) is declared already" in refusal(
            lambda: outbox.event("order.new")(V1)
        )
        outbox.upcaster("order.placed", from_version=1)(add_currency)
        said = refusal(lambda: outbox.upcaster("order.placed", from_version=1)(with_decimal))
        assert "Two upcasters of 'order.placed' are declared from version 1" in said
        assert "add_currency and tests.events.test_event_types.with_decimal" in said

    def test_a_module_that_is_executed_again_declares_the_same_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
        source = (
            "import outbox, dataclasses\n@outbox.event('a', version=2)\n@dataclasses.dataclass\nclass A:\n    x: int\n"
            "@outbox.upcaster('a', from_version=1)\ndef up(payload): return payload\n"
        )
        namespaces: list[dict[str, Any]] = [{"__name__": "shop"}, {"__name__": "shop"}]
        for namespace in namespaces:
            exec(source, namespace)  # noqa: S102  (as importlib.reload does)
        assert event_types.of_class(namespaces[1]["A"]) is not None
        assert event_types.of_class(namespaces[0]["A"]) is None

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            ({"name": ""}, "must not be empty"),
            ({"name": "order.*"}, "must not contain '*'"),
            ({"name": "a" * 101}, "the limit is 100"),
            ({"name": 7}, "must be text"),
            ({"name": "a", "version": 0}, "version of 'a' must be a whole number from 1 on"),
            ({"name": "a", "version": True}, "version of 'a' must be a whole number from 1 on"),
            ({"name": "a", "version": 2, "oldest": 3}, "oldest of 'a' must be a whole number from 1 to 2"),
        ],
        ids=str,
    )
    def test_arguments_that_can_not_be_are_refused(self, arguments: dict[str, Any], why: str) -> None:
        assert why in refusal(lambda: outbox.event(**arguments))

    def test_a_class_of_another_kind_is_refused_with_what_to_do(self) -> None:
        assert "Put @outbox.event above the decorator" in refusal(lambda: outbox.event("a")(type("A", (), {})))

    def test_a_handler_of_a_class_that_is_not_declared_is_refused(self) -> None:
        assert "Plain is not declared" in refusal(lambda: outbox.handler(Plain))

    def test_fields_that_can_not_be_read_are_refused_when_a_handler_is_registered(self) -> None:
        @dataclass
        class Either:
            value: Line | V1

        outbox.event("a")(Either)
        assert "has fields that can't be read: TypeError: Type unions may not contain more than one" in refusal(
            lambda: register(Either)
        )

    def test_without_msgspec_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "msgspec", None)
        outbox.event("a")(Plain)
        assert "pip install 'dramatiq-outbox[typed]'" in refusal(lambda: register(Plain))

    def test_a_worker_that_got_a_newer_class_later_does_not_start(self, box: Outbox) -> None:
        outbox.event("a")(V1)
        outbox.handler(V1, name="typed")(lambda _: None)
        box.check_registered()
        outbox.event("a", version=2)(V3)
        with pytest.raises(outbox.RegistrationError, match="has no upcaster from version 1"):
            box.check_registered()


class TestWhatReceiversGet:
    @pytest.fixture
    def event(self, box: Outbox) -> outbox.Event:
        """An event of version 1, which this code would upcast."""
        outbox.event("order.placed", version=1)(V1)
        outbox.event("order.placed", version=2)(V3)
        outbox.upcaster("order.placed", from_version=1)(add_currency)
        got: list[outbox.Event] = []
        outbox.handler(V3, name="taker")(got.append)
        emitted(box, V1("5"))
        box.process_pending_events()
        assert got[0].data == V3(Decimal(5), "EUR")
        return got[0]

    def test_is_the_stored_payload_and_its_version(self, event: outbox.Event) -> None:
        assert event.body == b'{"total":"5"}'
        envelope = as_dict(event)
        assert (envelope["data"], envelope["headers"]) == ({"total": "5"}, {"event_version": 1})
        assert json.loads(as_json(event)) == envelope
        cloud = json.loads(structured(event, "/shop"))
        assert (cloud["data"], cloud["eventversion"]) == ({"total": "5"}, "1")
        assert ("ce-eventversion", "1") in binary(event, "/shop")
        assert json.loads(stream.fields(event)["headers"]) == {"event_version": 1}

    def test_is_read_by_a_consumer_of_the_stream_that_declares_the_class(self, event: outbox.Event) -> None:
        fields = {name.encode(): value for name, value in stream.fields(event).items()}
        received = event_of(Entry("1-0", fields), 5, 1_000)
        assert received.data == V3(Decimal(5), "EUR")

    def test_is_what_make_event_makes_for_a_test(self) -> None:
        outbox.event("a")(V3)
        made = outbox.testing.make_event(V3(Decimal(5), "EUR"))
        assert (made.data, made.headers) == (V3(Decimal(5), "EUR"), {"event_version": 1})
        assert outbox.testing.make_event("a", {"total": 5, "currency": "EUR"}).data == made.data

    def test_a_sandbox_forgets_what_was_declared_in_it(self, box: Outbox) -> None:
        outbox.event("a")(V1)
        with outbox.testing.sandbox():
            outbox.event("a", version=2)(V3)
            outbox.upcaster("a", from_version=1)(add_currency)
        latest = event_types.latest("a")
        assert latest is not None
        assert (latest.cls, event_types.upcasters_of("a")) == (V1, {})


OLD_CODE = """
import outbox, dataclasses

@outbox.event("order.placed")
@dataclasses.dataclass
class Placed:
    total: int

@outbox.handler(Placed, name="billing", max_attempts=1)
def bill(event): print("old", event.data.total)
"""
NEW_CODE = """
import outbox, dataclasses

@outbox.event("order.placed", version=2)
@dataclasses.dataclass
class Placed:
    amount: int

@outbox.upcaster("order.placed", from_version=1)
def rename(payload): return {"amount": payload["total"]}

@outbox.handler(Placed, name="billing", max_attempts=1)
def bill(event): print("new", event.data.amount)
"""
EMIT = "with outbox.current().database.atomic(): outbox.emit('Order', {id}, Placed({id}))\n"
DELIVER = "outbox.process_pending_events()\n"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_while_a_new_version_is_rolled_out_old_workers_leave_its_events_to_new_ones(
    configure: Configure, url: str
) -> None:
    configure()
    settings: dict[str, Any] = {"database_url": url, "dispatch": "off", "max_age_hours": 0}
    run_python(NEW_CODE + EMIT.format(id=1), **settings)
    said = run_python(OLD_CODE + EMIT.format(id=2) + DELIVER, **settings)
    assert "old 2" in said
    assert "old 1" not in said
    let_pass(hours=100)
    assert "new 1" in run_python(NEW_CODE + DELIVER, **settings)
    rows = outbox.OutboxEvent.select()
    assert [(each.status, each.attempts) for each in rows] == [(DELIVERED, 1)] * 2


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ('{"total":"1","currency":"EUR","lines":[{"article":"a","price":"x"}]}', "$.lines[0].price"),
        ('{"total":"1","currency":"EUR","lines":[{"price":"1"}]}', "$.lines[0].article"),
        ('{"total":"1","currency":7}', "$.currency"),
        ('{"currency":"EUR"}', "$.total"),
    ],
)
def test_the_error_has_the_path_of_the_field(payload: str, path: str) -> None:
    types = EventTypes()
    types.event("a")(V3)
    with pytest.raises(outbox.UnreadableEvent) as raised:
        types.read("a", payload, {})
    assert raised.value.path == path


@dataclass
class Picky:
    total: int

    def __post_init__(self) -> None:
        raise KeyError("no such currency")


def test_what_a_class_itself_raises_is_an_event_that_can_not_be_read() -> None:
    types = EventTypes()
    types.event("a")(Picky)
    with pytest.raises(outbox.UnreadableEvent, match=r"can't be read as 'a' version 1 .*Picky.*: KeyError: 'no such"):
        types.read("a", '{"total":1}', {})


PARTS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
)
VALUES = st.recursive(PARTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))


@settings(max_examples=100, deadline=None)
@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("id", "total", "placed_at", "day", "lines", "by_article"), VALUES)
    )
)
def test_any_payload_is_read_or_can_not_be_read(payload: dict[str, Any]) -> None:
    types = EventTypes()
    types.event("a")(OfDataclass)
    types.event("b")(OfPydantic)
    for name, cls in (("a", OfDataclass), ("b", OfPydantic)):
        try:
            assert isinstance(types.read(name, json.dumps(payload), {}), cls)
        except outbox.UnreadableEvent as error:
            assert error.path is not None  # noqa: PT017  (most of them can't be read, not all)


def test_the_error_of_a_pydantic_model_has_the_path_and_no_value() -> None:
    types = EventTypes()
    types.event("a")(OfPydantic)
    with pytest.raises(outbox.UnreadableEvent) as raised:
        types.read("a", json.dumps({"id": str(ID), "total": "1", "Lines": [{"article": "a", "price": "hush"}]}), {})
    assert raised.value.path == "$.Lines[0].price"
    assert "hush" not in str(raised.value)


class Card(pydantic.BaseModel):
    kind: Literal["card"]


class Bank(pydantic.BaseModel):
    kind: Literal["bank"]


class Paid(pydantic.BaseModel):
    by: Card | Bank | None = pydantic.Field(default=None, discriminator="kind")
    shares: dict[str, int] = {}


@pytest.mark.parametrize(
    ("payload", "path"), [({"by": {"kind": "hush"}}, "$.by"), ({"shares": {"hush@example.com": "x"}}, "$.shares[...]")]
)
def test_nor_has_that_of_a_union_or_of_a_key_that_is_a_value(payload: object, path: str) -> None:
    types = EventTypes()
    types.event("a")(Paid)
    with pytest.raises(outbox.UnreadableEvent) as raised:
        types.read("a", json.dumps(payload), {})
    assert raised.value.path == path
    assert "hush" not in str(raised.value)


def test_the_error_of_an_enum_has_no_value() -> None:
    types = EventTypes()
    types.event("a")(OfDataclass)
    payload: dict[str, Any] = {
        "id": str(ID),
        "total": "1",
        "placed_at": "2026-01-01T00:00:00Z",
        "day": None,
        "lines": [],
        "colour": "hush",
    }
    with pytest.raises(outbox.UnreadableEvent, match=r"\$\.colour: is none of the values that are allowed") as raised:
        types.read("a", json.dumps(payload), {})
    assert "hush" not in str(raised.value)
