"""What type checkers know of typed events. The project's own run of mypy checks these lines; a test only runs them.

An expected error has its code beside it, and mypy refuses a comment that it does not need: so these are tests, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypedDict, assert_type

import attrs
import pydantic
import pytest

import outbox
from outbox.core import Outbox
from outbox.current_outbox import registry
from outbox.events.event_types import event_types


@dataclass(frozen=True)
class OfDataclass:
    total: Decimal


@attrs.frozen
class OfAttrs:
    total: Decimal


class OfPydantic(pydantic.BaseModel):
    total: Decimal


class OfTypedDict(TypedDict):
    total: Decimal


@pytest.fixture(autouse=True)
def _no_declarations() -> Iterator[None]:
    event_types.clear()
    yield
    event_types.clear()
    registry.clear()


def test_data_has_the_type_of_the_class(box: Outbox) -> None:
    assert_type(outbox.event("a")(OfDataclass), type[OfDataclass])
    outbox.event("b")(OfAttrs)
    outbox.event("c")(OfPydantic)
    outbox.event("d")(OfTypedDict)

    @outbox.handler(OfDataclass)
    def of_dataclass(event: outbox.Event[OfDataclass]) -> None:
        assert_type(event, outbox.Event[OfDataclass])
        assert_type(event.data, OfDataclass)
        assert_type(event.data.total, Decimal)
        with pytest.raises(AttributeError):
            event.data.price  # type: ignore[attr-defined]  # noqa: B018

    @outbox.handler(OfAttrs, name="attrs", max_attempts=3)
    def of_attrs(event: outbox.Event[OfAttrs]) -> None:
        assert_type(event.data.total, Decimal)

    @outbox.handler(OfPydantic, name="pydantic")
    def of_pydantic(event: outbox.Event[OfPydantic]) -> None:
        assert_type(event.data.total, Decimal)

    @outbox.handler(OfTypedDict, name="typed dict")
    def of_typed_dict(event: outbox.Event[OfTypedDict]) -> None:
        assert_type(event.data["total"], Decimal)

    @outbox.handler(OfDataclass, OfAttrs, name="both")
    def of_both(event: outbox.Event[OfDataclass | OfAttrs]) -> None:
        assert_type(event.data.total, Decimal)

    @outbox.handler("*", name="untyped")
    def untyped(event: outbox.Event) -> None:
        assert_type(event, outbox.Event[Any])

    with box.database.atomic():
        outbox.emit("Order", 1, OfDataclass(Decimal(1)))
        outbox.emit("Order", 1, OfAttrs(Decimal(1)))
        outbox.emit("Order", 1, OfPydantic(total=Decimal(1)))
        outbox.emit("Order", 1, OfTypedDict, OfTypedDict(total=Decimal(1)))
    box.process_pending_events()
    assert (box.counters["delivered"], box.counters["retried"]) == (4, 0)


def test_a_handler_of_another_class_is_an_error_of_types() -> None:
    outbox.event("a")(OfDataclass)

    @outbox.handler(OfDataclass)  # type: ignore[arg-type]
    def of_another(event: outbox.Event[OfAttrs]) -> None: ...

    # A type checker alone finds it: at run time annotations don't matter.
    assert len(registry.destinations) == 1


def test_what_can_not_be_emitted_is_an_error_of_types(box: Outbox) -> None:
    with pytest.raises(outbox.InvalidEvent, match="event_type must be text"):
        outbox.emit("Order", 1, 7)  # type: ignore[arg-type]
    with pytest.raises(outbox.InvalidEvent, match="event_type must be text"):
        outbox.emit("Order", 1, object())  # type: ignore[arg-type]


def test_options_that_do_not_exist_are_an_error_of_types() -> None:
    with pytest.raises(TypeError):
        outbox.handler("a", attempts=3)  # type: ignore[call-overload]
    with pytest.raises(outbox.SettingsError):
        outbox.configure(batch_sise=1)  # type: ignore[call-arg]


def test_the_options_of_a_handler_are_those_that_checkers_know() -> None:
    import inspect
    import typing

    from outbox.destinations.handler_options import HandlerOptions
    from outbox.destinations.registry import Registry

    parameters = inspect.signature(Registry.handler).parameters
    named = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
    assert list(typing.get_type_hints(HandlerOptions)) == named
