"""Lists as PostgreSQL writes arrays: one text for a whole column. Of which type its items are, the statement says.

psycopg turns a list into the same text item by item, looking for the way to write each: for a thousand events that
took longer than their insertion.
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


def _array(values: Items, write: Callable[[Any], str]) -> str:
    first = values[0]
    if values.count(first) == len(values):  # as in most columns: what all events of a kind share
        items = ["NULL" if first is None else write(first)] * len(values)
    else:
        items = ["NULL" if value is None else write(value) for value in values]
    return f"{{{','.join(items)}}}"
