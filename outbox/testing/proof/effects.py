"""Find out what the calls of a handler have changed in the tables, and compare two such changes.

Some values differ between any two runs: ids, times, random numbers. Two runs of a single call show which columns have
such values. These columns are left out of every comparison.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from outbox.admin.masking import MASKED, Masking
from outbox.settings import DEFAULT_MASKED_KEYS
from outbox.testing.proof.database_copy import Rows, Tables
from outbox.text import visible

Row = tuple[str | None, ...]
# Replaces a value that differs between any two runs.
ANY = "(any)"
# The most rows, and characters of a value, that are shown.
ROWS_SHOWN, CHARACTERS_SHOWN = 3, 60
# The rows are those of the application, and what is printed may be kept as the log of a CI run.
MASKING = Masking(DEFAULT_MASKED_KEYS)
# Rows are paired one by one; this many at most.
MOST_PAIRED = 300

# The columns whose values differ between any two runs, by table.
Varying = dict[str, frozenset[int]]


@dataclass(frozen=True)
class Change:
    """The rows of one table that were removed and added. An updated row counts as removed, and added as it is now."""

    columns: tuple[str, ...]
    added: Rows
    removed: Rows

    def without(self, varying: frozenset[int]) -> Rows:
        """Return the rows that were added, without the values that vary."""
        found: Rows = Counter()
        for row, count in self.added.items():
            found[tuple(ANY if number in varying else value for number, value in enumerate(row))] += count
        return found


# By table; tables that are unchanged are left out.
Changes = dict[str, Change]


def changes(before: Tables, after: Tables) -> Changes:
    """Return what has changed in which table."""
    found = {}
    for name in before.keys() | after.keys():
        columns, rows = after.get(name, (before.get(name, ((), Counter()))[0], Counter()))
        rows_before = before.get(name, ((), Counter()))[1]
        if rows != rows_before:
            found[name] = Change(columns, rows - rows_before, rows_before - rows)
    return dict(sorted(found.items()))


def has_same_shape(one: Changes, other: Changes) -> bool:
    """Return whether as many rows of the same tables were added and removed."""

    def shape(each: Changes) -> object:
        return {name: (change.added.total(), change.removed.total()) for name, change in each.items()}

    return shape(one) == shape(other)


def varying(one: Changes, other: Changes) -> Varying:
    """Return the columns in which the rows that two runs have added differ."""
    return {
        name: frozenset(
            number
            for row, partner in _pairs(one[name].added, other[name].added)
            for number, (value, its) in enumerate(zip(row, partner, strict=False))
            if value != its
        )
        for name in one.keys() & other.keys()
    }


def merged(*several: Varying) -> Varying:
    """Return the columns that vary in any of them."""
    return {
        name: frozenset().union(*(each.get(name, frozenset()) for each in several)) for each in several for name in each
    }


def names_of(changed: Changes, varies: Varying) -> list[str]:
    """Return the columns that are not compared, as `table.column`."""
    return [
        f"{name}.{change.columns[number]}"
        for name, change in changed.items()
        for number in sorted(varies.get(name, ()))
    ]


def differences(once: Changes, many: Changes, varies: Varying) -> list[str]:
    """Return how the tables after several calls differ from those after one call: a line or more for each table."""
    lines: list[str] = []
    for name in sorted(once.keys() | many.keys()):
        expected, found = _of(name, once, many), _of(name, many, once)
        columns = varies.get(name, frozenset())
        right, actual = expected.without(columns), found.without(columns)
        missing, extra = right - actual, actual - right
        if not missing and not extra and expected.removed == found.removed:
            continue
        lines.append(f"table {visible(name)}: {_summary(expected, found)}")
        lines += _shown(expected.columns, extra, "too much:")
        lines += _shown(expected.columns, missing, "missing:")
        lines += _shown(expected.columns, found.removed - expected.removed, "deleted or changed, too:")
        lines += _shown(expected.columns, expected.removed - found.removed, "not deleted or changed:")
    return lines


def _of(name: str, changed: Changes, other: Changes) -> Change:
    """Return the change of a table; an empty one if only the other run has changed it."""
    return changed[name] if name in changed else Change(other[name].columns, Counter(), Counter())


def _summary(expected: Change, found: Change) -> str:
    more = found.added.total() - found.removed.total()
    once = expected.added.total() - expected.removed.total()
    if more != once:
        return f"{_rows(more)} instead of {_rows(once)}"
    return "other values than after one call"


def _rows(number: int) -> str:
    if number < 0:
        return f"{-number} {'row' if number == -1 else 'rows'} less"
    return "no new row" if number == 0 else f"{number} new {'row' if number == 1 else 'rows'}"


def _shown(columns: tuple[str, ...], rows: Rows, heading: str) -> list[str]:
    lines = []
    for row in list(rows.elements())[:ROWS_SHOWN]:
        pairs = [
            f"{visible(column)}={MASKED if MASKING.hides(column) else _value(MASKING.masked(value))}"
            for column, value in zip(columns, row, strict=False)
            if value is not ANY and value is not None
        ]
        lines.append(f"  {heading} {', '.join(pairs) or '(a row)'}")
    if rows.total() > ROWS_SHOWN:
        lines.append(f"  {heading} {rows.total() - ROWS_SHOWN} more rows")
    return lines


def _value(value: str) -> str:
    short = value if len(value) <= CHARACTERS_SHOWN else value[:CHARACTERS_SHOWN] + "…"
    return visible(short)


def _pairs(one: Rows, other: Rows) -> list[tuple[Row, Row]]:
    """Pair each row with that of the other run that is most like it."""
    left = list((other - one).elements())[:MOST_PAIRED]
    found = []
    for row in list((one - other).elements())[:MOST_PAIRED]:
        if left:
            best = max(left, key=lambda each: sum(value == its for value, its in zip(row, each, strict=False)))
            left.remove(best)
            found.append((row, best))
    return found
