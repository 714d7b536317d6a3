"""Patterns of event types: a name, a prefix with a star, or a star."""

import pytest

import outbox
from outbox.core import Outbox
from outbox.destinations.event_filter import Pattern
from outbox.errors import RegistrationError
from outbox.storage.models import NAME_LENGTH
from tests.support.table import emit


class TestPatterns:
    @pytest.mark.parametrize(
        ("pattern", "matching", "other"),
        [
            ("user.created", ["user.created"], ["user.create", "user.createdx", "xuser.created", "user_created"]),
            ("user.*", ["user.created", "user.", "user.address.changed"], ["user", "users.created", "xuser.created"]),
            ("*", ["user.created", "x"], []),
        ],
    )
    def test_a_star_at_the_end_stands_for_any_rest(self, pattern: str, matching: list[str], other: list[str]) -> None:
        assert [text for text in matching + other if Pattern(text=pattern).matches(text)] == matching

    @pytest.mark.parametrize("text", ["", "x" * (NAME_LENGTH + 1), "user*", "*.created", "user.*.x", "**", None, 7])
    def test_anything_else_is_refused(self, text: object) -> None:
        with pytest.raises(RegistrationError, match=r"pattern|characters"):
            Pattern(text)

    def test_the_longest_name_is_accepted(self) -> None:
        assert Pattern("x" * NAME_LENGTH).matches("x" * NAME_LENGTH)

    def test_one_handler_may_have_several_and_is_called_once(self, box: Outbox) -> None:
        called: list[str] = []
        outbox.handler("user.*", "user.created", "*")(lambda event: called.append(event.event_type))
        emit(1, "user.created")
        emit(1, "order.paid")
        box.process_pending_events()
        assert sorted(called) == ["order.paid", "user.created"]
