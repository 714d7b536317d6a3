"""Text that comes from handlers, receivers and users is cleaned before it is stored or shown."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.text import (
    ERROR_LENGTH,
    LABEL_LENGTH,
    clean_error,
    clean_json,
    clean_label,
    is_storable,
    one_line,
    printable,
    visible,
    visible_json,
    visible_lines,
)

ANY_TEXT = st.text(st.characters(codec=None))


class TestError:
    @given(ANY_TEXT)
    def test_any_text_becomes_one_that_every_database_stores(self, text: str) -> None:
        cleaned = clean_error(text)
        assert is_storable(cleaned)
        assert len(cleaned) <= ERROR_LENGTH

    @pytest.mark.parametrize("length", [ERROR_LENGTH - 1, ERROR_LENGTH])
    def test_one_up_to_the_limit_stays_whole(self, length: int) -> None:
        assert clean_error("x" * length) == "x" * length

    def test_a_longer_one_is_cut_and_shows_it(self) -> None:
        assert clean_error("x" * (ERROR_LENGTH + 1)) == "x" * (ERROR_LENGTH - 1) + "…"


@given(ANY_TEXT)
def test_any_label_becomes_one_that_fits_into_the_key(text: str) -> None:
    label = clean_label(text)
    assert is_storable(label)
    assert len(json.dumps(label)) <= 2 * LABEL_LENGTH


@pytest.mark.parametrize(
    ("value", "cleaned"),
    [
        (float("nan"), None),
        ({1: ("a\x00", {2})}, {"1": ["a\N{REPLACEMENT CHARACTER}", [2]]}),
        (ValueError("no"), "no"),
    ],
    ids=str,
)
def test_any_value_becomes_json(value: Any, cleaned: Any) -> None:
    assert clean_json(value) == cleaned


def test_control_characters_and_line_breaks_are_not_shown() -> None:
    assert printable(one_line("a\n b\x1b[31m")) == "a b\N{REPLACEMENT CHARACTER}[31m"


class TestVisible:
    @given(ANY_TEXT)
    def test_whatever_it_was_it_is_printable(self, text: str) -> None:
        assert visible(text).isprintable()
        assert visible_lines(text).replace("\n", "").isprintable()
        assert visible_lines(text).count("\n") == text.count("\n")

    def test_shows_what_it_was(self) -> None:
        assert visible("ß a\n\x1b\x85\u202e\ud800\U000e0041") == "ß a\\n\\x1b\\x85\\u202e\\ud800\\U000e0041"

    @given(ANY_TEXT)
    def test_json_means_the_same(self, text: str) -> None:
        shown = visible_json(json.dumps({text: [text]}, indent=2, ensure_ascii=False))
        assert json.loads(shown) == {text: [text]}
        assert shown.replace("\n", "").isprintable()
