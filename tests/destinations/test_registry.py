"""The registry: what can't work is refused when it is registered."""

from typing import Any

import pytest

import outbox
from outbox.core import Outbox
from outbox.destinations.async_handler import AsyncHandler
from outbox.destinations.handler import Handler
from outbox.destinations.registry import LOOKUPS_KEPT, Registry
from outbox.errors import RegistrationError
from tests.support.table import emit


def take(_: outbox.Event) -> None:
    """A handler that returns without an error."""


def take_too(_: outbox.Event) -> None:
    """Another one."""


class TestRegistration:
    def test_the_name_is_the_functions_path_unless_it_is_given(self) -> None:
        registry = Registry()
        registry.handler("a")(take)
        registry.handler("a", name="stable")(take_too)
        assert set(registry.destinations) == {"tests.destinations.test_registry.take", "stable"}

    def test_the_decorated_function_is_unchanged(self) -> None:
        assert Registry().handler("a")(take) is take

    def test_two_destinations_of_one_name_are_refused(self) -> None:
        registry = Registry()
        registry.handler("a", name="twin")(take)
        with pytest.raises(RegistrationError, match="'twin'"):
            registry.handler("b", name="twin")(take_too)

    def test_a_coroutine_function_is_registered_to_be_awaited(self) -> None:
        async def handle(_: outbox.Event) -> None: ...

        registry = Registry()
        registry.handler("a", name="awaited")(handle)
        assert isinstance(registry.destinations["awaited"], AsyncHandler)
        with pytest.raises(RegistrationError, match=r"register it with @outbox\.handler"):
            Handler(handle, ["a"])
        with pytest.raises(RegistrationError, match="a plain function"):
            AsyncHandler(take, ["a"])

    def test_a_handler_without_event_types_is_refused(self) -> None:
        with pytest.raises(RegistrationError, match="names no event type"):
            Registry().handler()(take)

    def test_forgotten_brackets_are_refused(self) -> None:
        with pytest.raises(RegistrationError, match="must be text"):
            Registry().handler(take)  # type: ignore[call-overload]

    def test_a_handler_that_is_registered_later_is_found(self, box: Outbox) -> None:
        outbox.handler("order.*", name="first")(lambda _: None)
        emit(1)
        box.process_pending_events()
        called: list[outbox.Event] = []
        outbox.handler("order.*", name="second")(called.append)
        emit(1)
        box.process_pending_events()
        assert len(called) == 1


class TestLookups:
    def test_they_are_remembered_for_so_many_types_and_no_more(self) -> None:
        registry = Registry()
        registry.handler("*", name="taker")(take)
        for number in range(2 * LOOKUPS_KEPT + 1):
            assert [each.name for each in registry.wanting(f"type-{number}")] == ["taker"]
            assert len(registry._lookups) <= LOOKUPS_KEPT
        assert registry.wanting("type-0") is registry.wanting("type-0")


class TestASignature:
    @pytest.mark.parametrize("function", [lambda: None, lambda _, __: None, lambda *, _: None])
    def test_that_does_not_take_one_argument_is_refused(self, function: Any) -> None:
        with pytest.raises(outbox.RegistrationError, match="a handler gets the event alone"):
            outbox.handler("order.*", name="odd")(function)

    @pytest.mark.parametrize("function", [lambda _: None, lambda *_: None, lambda _, __=1: None, print])
    def test_that_takes_one_argument_is_accepted(self, box: Outbox, function: Any) -> None:
        outbox.handler("order.*", name="fine")(function)
        assert "fine" in box.registry.destinations


class TestRegistering:
    @pytest.mark.parametrize("replaces", ["same", ["", "x"], 7, ["x" * 256]])
    def test_refuses_what_can_not_be_replaced(self, box: Outbox, replaces: Any) -> None:
        with pytest.raises(RegistrationError):
            outbox.handler("*", name="same", replaces=replaces)(lambda _: None)

    def test_refuses_a_destination_that_does_not_say_which_events_it_wants(self, box: Outbox) -> None:
        class Old:
            name = "old"

            def wants(self, _: str) -> bool:
                return True

            def deliver(self, *_: object) -> list[Any]:
                return []

        with pytest.raises(RegistrationError, match=r"has no `events`"):
            outbox.add_destination(Old())  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", ["x" * 256, "a\0b", " "])
    def test_refuses_a_name_that_can_not_be_recorded(self, box: Outbox, name: str) -> None:
        with pytest.raises(RegistrationError):
            outbox.handler("*", name=name)(lambda _: None)

    @pytest.mark.parametrize("name", ["x" * 256, "", 7])
    def test_refuses_to_retire_what_can_not_be_a_name(self, box: Outbox, name: Any) -> None:
        with pytest.raises(RegistrationError):
            outbox.retire(name)
