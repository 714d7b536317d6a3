"""What may come from outside: any value at all, with those in front that programs stumble over."""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

from hypothesis import strategies as st


class Colour(StrEnum):
    RED = "red"
    NUL = "\x00"


@dataclass
class Line:
    sku: Any
    count: Any = 1


class Stubborn:
    """It has no size and no truth."""

    def __len__(self) -> int:
        raise RuntimeError("no size")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")


NASTY_TEXTS = [
    "", " ", "\x00", "a\x00b", "\ud800", "a\udfffb", "\uffff", "\U0010ffff", "\u202e", "\u2028", "\x7f", "\x1b[31m",
    "'", '"', "\\", "\\u0000", "%", "%s", "?", "{}", "{now}", "*", "a.*", "é", "e\u0301", "ß" * 100, "x" * 100,
    "x" * 101, "x" * 255, "x" * 256, "😀" * 100, "'; DROP TABLE outbox_event; --", "\r\nX-Evil: 1",
]  # fmt: skip
NASTY_NUMBERS = [0, -0.0, 1, -1, 2**31, 2**63, 2**64, 10**400, 10**4000, 1e308, float("nan"), float("inf"), True]
NASTY_THINGS = [
    None, b"bytes", Colour.RED, Colour.NUL, Line("a"), Line(float("nan")), Line, Stubborn(), object(), {1}, 1j,
    UUID(int=0), Decimal("1.10"), Decimal("sNaN"), Decimal("1E+999999"), OrderedDict(a=1),
    datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None), datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=23))),
    timedelta(-1), timedelta.max,
    datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-23))), datetime(2026, 1, 1, tzinfo=UTC),
]  # fmt: skip

texts = st.sampled_from(NASTY_TEXTS) | st.text(st.characters(), max_size=30)  # lone surrogates among them
numbers = st.sampled_from(NASTY_NUMBERS) | st.integers() | st.floats()
things = texts | numbers | st.sampled_from(NASTY_THINGS)
values: st.SearchStrategy[Any] = st.recursive(
    things,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.one_of(texts, numbers, st.none()), inner, max_size=3)
    ),
    max_leaves=8,
)
