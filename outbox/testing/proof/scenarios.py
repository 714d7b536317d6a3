"""Run the scenarios: repeated, twice at the same time, killed after each statement. Each has copies of its own.

Each scenario is compared with the *reference*: one call that nothing disturbs. A second such call has another attempt
number and other numbers from sequences. Columns in which the two calls differ are not compared. A call that raises is
made again, as a worker does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from outbox.core import Outbox
from outbox.destinations.handler import Handler
from outbox.events.event import Event
from outbox.testing.proof.call_process import CallProcess, CallResult
from outbox.testing.proof.call_work import work_of
from outbox.testing.proof.copies import Copies
from outbox.testing.proof.database_copy import Tables
from outbox.testing.proof.effects import (
    Changes,
    Varying,
    changes,
    differences,
    has_same_shape,
    merged,
    names_of,
    varying,
)
from outbox.testing.proof.proof import AT_ONCE, KILLED, REPEATED, Variant, Weakness, shown_statement

# How often a call that raises is made, in all.
MOST_CALLS = 3
# If the second of two calls reports nothing for so long while the first is in a transaction, it waits for a lock.
SILENCE_SECONDS = 0.3
# How much later than the reference another single call begins at least, so that times in whole seconds differ.
LATER_SECONDS = 1.1


@dataclass(frozen=True)
class CallLimits:
    """How long a call may take, and after how many of its statements it is killed."""

    seconds: float
    most_statements: int
    allow_calls: bool


class Scenarios:
    """Tries one handler with one event."""

    def __init__(
        self, handler: Handler, event: Event, *, box: Outbox, base: Copies, before: Tables, limits: CallLimits
    ) -> None:
        self._handler, self._event, self._box = handler, event, box
        self._base, self._before, self._limits = base, before, limits
        self._began_at = time.monotonic()
        self._has_waited = False
        self._varies: Varying = {}
        self._once: Changes = {}

    def try_all(self, name: str) -> Variant:
        """Try every scenario; return the results."""
        found = Variant(name)
        if not self._make_reference(found):
            return found
        number = len(found.statements)
        points = range(1, min(number, self._limits.most_statements) + 1)
        found.untried = number - len(points)
        self._note(found, REPEATED, "when repeated", self._repeat())
        for point in points:
            after = f"statement {point} of {number}: {shown_statement(found.statements[point - 1])}"
            self._note(found, AT_ONCE, f"when a second call runs after {after}", self._at_once(point))
        for point in points:
            after = f"statement {point} of {number}: {shown_statement(found.statements[point - 1])}"
            self._note(found, KILLED, f"when killed after {after}", self._kill(point))
        found.ignored = [each for each in names_of(self._once, self._varies) if not each.startswith(self._own_tables())]
        return found

    def _make_reference(self, found: Variant) -> bool:
        """Call the handler once, and record the changes; return whether other calls can be compared with them."""
        with self._base.copied() as copies:
            outcome = self._call(copies, 1)
            found.statements, found.outside = outcome.statements, outcome.outside
            found.problem = self._problem_of(outcome)
            if found.problem is not None:
                return False
            self._once = self._changes(copies)
        if self._once and not found.statements:
            found.problem = "it changes the database with a driver whose statements can't be traced"
            return False
        return self._find_varying_columns(found)

    def _find_varying_columns(self, found: Variant) -> bool:
        """Call the handler alone again, and find the columns that differ; return whether the rest is comparable."""
        second = self._single_call(attempt=2)
        if has_same_shape(self._once, second):
            self._varies = varying(self._once, second)
            return True
        third = self._single_call(attempt=1)
        if not has_same_shape(self._once, third):
            found.problem = "two single calls have different effects, so nothing can be compared: " + "; ".join(
                differences(self._once, third, {})[:1]
            )
            return False
        self._varies = varying(self._once, third)
        self._note(
            found, KILLED, "when killed before its first statement", differences(self._once, second, self._varies)
        )
        return True

    def _note(self, found: Variant, kind: str, when: str, differs: list[str]) -> None:
        found.tried[kind] = found.tried.get(kind, 0) + 1
        if differs:
            found.weaknesses.append(Weakness(kind, when, tuple(differs)))

    def _repeat(self) -> list[str]:
        with self._base.copied() as copies:
            self._call(copies, 1)
            return self._compare(copies, self._until_it_returns(copies, 2))

    def _kill(self, point: int) -> list[str]:
        with self._base.copied() as copies:
            self._call(copies, 1, kill_after=point)
            return self._compare(copies, self._until_it_returns(copies, 2))

    def _at_once(self, point: int) -> list[str]:
        seconds = self._limits.seconds
        with self._base.copied() as copies:
            with self._process(copies, 1, wait_after=point) as first:
                first.wait(seconds)
                with self._process(copies, 2) as second:
                    # The second may wait for a lock of the first, and afterwards the first for a lock of the second.
                    if first.outcome.in_transaction:
                        second.wait_while_busy(silence_seconds=SILENCE_SECONDS)
                    else:
                        second.wait(seconds)
                    first.go_on()
                    first.wait(seconds)
                    second.wait(seconds)
            copies.wait_until_unused()
            error = None
            for outcome in (first.outcome, second.outcome):
                if not outcome.has_returned:
                    error = self._until_it_returns(copies, 3)
            return self._compare(copies, error)

    def _until_it_returns(self, copies: Copies, attempt: int) -> str | None:
        """Call the handler until it returns, as a worker does; return the error of the last call."""
        for number in range(attempt, attempt + MOST_CALLS):
            error = self._problem_of(self._call(copies, number))
            if error is None:
                return None
        return error

    def _call(self, copies: Copies, attempt: int, *, kill_after: int | None = None) -> CallResult:
        with self._process(copies, attempt, kill_after=kill_after) as process:
            process.wait(self._limits.seconds)
        copies.wait_until_unused()
        return process.outcome

    @contextmanager
    def _process(
        self, copies: Copies, attempt: int, *, kill_after: int | None = None, wait_after: int | None = None
    ) -> Iterator[CallProcess]:
        limits = self._limits
        work = work_of(self._handler, self._event, attempt, copies, self._box, allow_calls=limits.allow_calls)
        with CallProcess(work, kill_after=kill_after, wait_after=wait_after) as process:
            yield process

    def _single_call(self, attempt: int) -> Changes:
        with self._base.copied() as copies:
            copies.skip_numbers()
            before = copies.read()
            self._until_it_returns(copies, attempt)
            return changes(before, copies.read())

    def _changes(self, copies: Copies) -> Changes:
        return changes(self._before, copies.read())

    def _compare(self, copies: Copies, error: str | None) -> list[str]:
        """Return how the tables, and the end of the last call, differ from the reference."""
        many = self._changes(copies)
        differs = differences(self._once, many, self._varies)
        if differs and not self._has_waited:
            # Perhaps only times in whole seconds differ: two calls in the same second have them in common.
            self._has_waited = True
            time.sleep(max(0.0, self._began_at + LATER_SECONDS - time.monotonic()))
            later = self._single_call(attempt=1)
            if has_same_shape(self._once, later):
                self._varies = merged(self._varies, varying(self._once, later))
            differs = differences(self._once, many, self._varies)
        return ([f"the call after it fails: {error}"] if error else []) + differs

    def _own_tables(self) -> tuple[str, ...]:
        """Return the prefixes of the outbox's own tables: ids and times always differ there, so it is not reported."""
        tables = self._box.settings.tables
        return tuple(f"{schema}{name}" for schema in ("", f"{tables.schema}.") for name in (tables.prefix, "inbox."))

    def _problem_of(self, outcome: CallResult) -> str | None:
        if outcome.is_late:
            return f"it did not return within {self._limits.seconds:g} seconds"
        if outcome.has_returned:
            return None
        if outcome.error is None:
            return "its process ended without a result"
        return outcome.error + (f" ({outcome.trace})" if outcome.trace else "")
