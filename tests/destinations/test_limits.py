"""Limits: what can't be meant is refused when a destination is made, and not when its first event goes."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.destinations.limits import OPEN_AFTER, Limits
from outbox.errors import RegistrationError

WHOLE = st.none() | st.integers(1)
RATE = st.none() | st.integers(1, 10**9) | st.floats(1e-9, 1e9)


def test_by_default_nothing_is_limited_and_the_breaker_opens_after_five_failures() -> None:
    assert Limits() == Limits(concurrency=None, per_second=None, open_after=5)
    assert OPEN_AFTER == 5


@given(WHOLE, RATE, WHOLE)
def test_whole_numbers_from_one_on_and_rates_above_zero_are_valid(
    concurrency: int | None, per_second: float | None, open_after: int | None
) -> None:
    limits = Limits(concurrency, per_second, open_after)
    assert (limits.concurrency, limits.per_second, limits.open_after) == (concurrency, per_second, open_after)


@pytest.mark.parametrize("name", ["concurrency", "open_after"])
@pytest.mark.parametrize("value", [0, -1, 1.0, 1.5, True, False, "1", math.inf])
def test_anything_but_a_whole_number_from_one_on_is_refused(name: str, value: Any) -> None:
    with pytest.raises(RegistrationError, match=f"^{name} must be a whole number from 1 on, or None, not "):
        Limits(**{name: value})


@pytest.mark.parametrize("value", [0, -0.0, -1, math.nan, math.inf, -math.inf, True, "1", 1j])
def test_anything_but_a_rate_is_refused(value: Any) -> None:
    with pytest.raises(RegistrationError, match=r"^per_second must be a number greater than 0, or None, not "):
        Limits(per_second=value)


def test_a_rate_beyond_all_floats_is_refused() -> None:
    with pytest.raises(RegistrationError, match="per_second"):
        Limits(per_second=10**400)


@pytest.mark.parametrize("value", ["5", "", "soon"])
def test_the_message_repeats_what_was_given(value: Any) -> None:
    with pytest.raises(RegistrationError, match=rf"not '{value}'\.$"):
        Limits(concurrency=value)
