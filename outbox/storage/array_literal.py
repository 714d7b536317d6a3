"""Encode a whole column as one text, PostgreSQL's array literal, because it is faster.

psycopg turns a list into the same text, but looks up for each item how to encode it: for a thousand events that took
longer than inserting them. The statement casts the text to the array's type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any
from uuid import UUID

Items = Sequence[Any]


def array_of_texts(values: Items) -> str:
    return _array(values, lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')


def array_of_numbers(values: Items) -> str:
    return _array(values, str)


def array_of_timestamps(values: Items) -> str:
    return _array(values, lambda text: f'"{text}"')


def array_of_ids(values: Sequence[UUID]) -> str:
    return _array(values, attrgetter("hex"))


def _array(values: Items, encode: Callable[[Any], str]) -> str:
    if not values:
        return "{}"
    first = values[0]
    if values.count(first) == len(values):  # most columns have the same value for all events of a call
        items = ["NULL" if first is None else encode(first)] * len(values)
    else:
        items = ["NULL" if value is None else encode(value) for value in values]
    return f"{{{','.join(items)}}}"
