"""Retry decisions are pure functions: from an entry of `progress` and an outcome to the next entry."""

import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.delivery.retry import JITTER, LONGEST_WAIT, RowUpdate, after, backoff, row_update
from outbox.destinations.outcome import Delivered, Failed, Outcome, Retry
from outbox.errors import Unavailable
from outbox.settings import Settings
from outbox.storage.models import DELIVERED, FAILED, PENDING
from outbox.storage.progress import NOT_REGISTERED, WAITING, ProgressEntry
from outbox.storage.timestamp import EARLIEST
from outbox.text import ERROR_LENGTH

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
EXACT = Settings(backoff_jitter=False)
SECOND = timedelta(seconds=1)
MAX_AGE = timedelta(hours=72)


def next_entry(
    outcome: Outcome, entry: ProgressEntry | None = None, now: datetime = NOW, max_attempts: int = 5
) -> ProgressEntry:
    return after(ProgressEntry() if entry is None else entry, outcome, now, max_attempts, EXACT)


def entry_after(count: int, outcome: Outcome, max_attempts: int = 1_000) -> ProgressEntry:
    entry = ProgressEntry()
    for _ in range(count):
        entry = next_entry(outcome, entry, max_attempts=max_attempts)
    return entry


class TestBackoff:
    @pytest.mark.parametrize(
        ("retry", "seconds"), [(1, 60), (2, 120), (3, 240), (6, 1920), (7, 3600), (8, 3600), (10_000, 3600)]
    )
    def test_it_doubles_from_the_base_up_to_the_cap(self, retry: int, seconds: int) -> None:
        assert backoff(retry, EXACT) == timedelta(seconds=seconds)

    def test_a_cap_below_the_base_wins(self) -> None:
        settings = Settings(backoff_jitter=False, backoff_base_seconds=60, backoff_cap_seconds=10)
        assert backoff(1, settings) == timedelta(seconds=10)

    def test_a_base_of_zero_waits_for_nothing(self) -> None:
        assert backoff(9, Settings(backoff_base_seconds=0)) == timedelta(0)

    @given(retry=st.integers(1, 100), base=st.floats(0, 1e6), cap=st.floats(0, 1e6), seed=st.integers(0, 1_000))
    def test_jitter_only_lengthens_and_by_a_quarter_at_most(
        self, retry: int, base: float, cap: float, seed: int
    ) -> None:
        random.seed(seed)  # Hypothesis would begin every example with the same
        exact = backoff(retry, Settings(backoff_jitter=False, backoff_base_seconds=base, backoff_cap_seconds=cap))
        wait = backoff(retry, Settings(backoff_jitter=True, backoff_base_seconds=base, backoff_cap_seconds=cap))
        assert exact <= wait <= exact * (1 + JITTER) + timedelta(microseconds=1)

    def test_jitter_spreads_waits(self) -> None:
        assert len({backoff(1, Settings(backoff_jitter=True)) for _ in range(20)}) > 1


class TestRetry:
    @pytest.mark.parametrize(("attempt", "seconds"), [(1, 60), (2, 120), (3, 240)])
    def test_each_costs_an_attempt_and_waits_its_backoff(self, attempt: int, seconds: int) -> None:
        entry = entry_after(attempt, Retry("no"))
        assert (entry.state, entry.attempts, entry.error) == (WAITING, attempt, "no")
        assert entry.not_before == NOW + timedelta(seconds=seconds)

    def test_attempts_are_used_up_exactly_at_the_limit(self) -> None:
        assert entry_after(4, Retry("no"), max_attempts=5).state == WAITING
        assert entry_after(5, Retry("no"), max_attempts=5) == ProgressEntry(state=FAILED, attempts=5, error="no")

    def test_a_single_attempt_is_the_last(self) -> None:
        assert next_entry(Retry("no"), max_attempts=1).state == FAILED

    @pytest.mark.parametrize("wait", [timedelta(0), timedelta(hours=30)])
    def test_a_time_of_its_own_overrides_the_backoff(self, wait: timedelta) -> None:
        assert next_entry(Retry("no", wait)).not_before == NOW + wait
        assert next_entry(Retry("no", NOW + wait)).not_before == NOW + wait

    @pytest.mark.parametrize(
        ("asked", "due"),
        [
            (timedelta.max, NOW + LONGEST_WAIT),
            (timedelta.min, NOW),
            (datetime.max.replace(tzinfo=UTC), NOW + LONGEST_WAIT),
            (datetime.max.replace(tzinfo=timezone(-timedelta(hours=12))), NOW + LONGEST_WAIT),
            (datetime.min.replace(tzinfo=UTC), EARLIEST),
            (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), EARLIEST),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("outcome", [Retry, lambda error, when: Unavailable(error, not_before=when)])
    def test_a_time_that_no_database_could_return_is_brought_into_range(
        self, outcome: Any, asked: datetime | timedelta, due: datetime
    ) -> None:
        assert next_entry(outcome("no", asked)).not_before == due

    def test_it_does_not_end_by_age(self) -> None:
        old = ProgressEntry(attempts=1, since=NOW - 10 * MAX_AGE)
        assert next_entry(Retry("no"), old).state == WAITING


class TestUnavailable:
    def test_it_costs_no_attempt_and_waits_longer_each_time(self) -> None:
        waits = [entry_after(count, Unavailable("down"), max_attempts=1) for count in (1, 2, 3, 50)]
        assert {entry.attempts for entry in waits} == {0}
        assert [entry.not_before for entry in waits] == [
            NOW + timedelta(seconds=seconds) for seconds in (60, 120, 240, 3600)
        ]

    @pytest.mark.parametrize(("age", "state"), [(MAX_AGE - SECOND, WAITING), (MAX_AGE, FAILED)])
    def test_it_ends_at_the_maximum_age(self, age: timedelta, state: str) -> None:
        first = next_entry(Unavailable("down"))
        assert next_entry(Unavailable("down"), first, NOW + age).state == state

    def test_the_end_names_the_error_and_the_setting(self) -> None:
        entry = next_entry(Unavailable("down"), ProgressEntry(since=NOW - MAX_AGE))
        assert entry.error == "down (given up after 72 hours, OUTBOX_MAX_AGE_HOURS)"

    def test_the_age_counts_from_the_first_outcome_that_was_not_a_success(self) -> None:
        refused = next_entry(Retry("no"))
        assert next_entry(Unavailable("down"), refused, NOW + MAX_AGE - SECOND).state == WAITING
        assert next_entry(Unavailable("down"), refused, NOW + MAX_AGE).state == FAILED

    @pytest.mark.parametrize("not_before", [timedelta(days=4), NOW + timedelta(days=4)])
    def test_a_wait_that_was_asked_for_does_not_count(self, not_before: timedelta | datetime) -> None:
        asked = next_entry(Retry("not yet", not_before))
        later = NOW + timedelta(days=4)
        down = next_entry(Unavailable("down"), asked, later)
        assert (down.state, down.attempts) == (WAITING, 1)
        assert next_entry(Unavailable("down"), down, later + MAX_AGE - SECOND).state == WAITING
        assert next_entry(Unavailable("down"), down, later + MAX_AGE).state == FAILED

    def test_being_reached_again_starts_its_waits_anew(self) -> None:
        refused = next_entry(Retry("no"), entry_after(5, Unavailable("down")))
        waiting = next_entry(Unavailable("down"), refused)
        assert (waiting.attempts, waiting.not_before) == (1, NOW + timedelta(seconds=60))

    def test_a_time_of_its_own_overrides_the_backoff(self) -> None:
        entry = next_entry(Unavailable("down", not_before=timedelta(minutes=5)))
        assert entry.not_before == NOW + timedelta(minutes=5)


class TestEnds:
    def test_delivered_counts_the_attempt_and_forgets_the_error(self) -> None:
        assert next_entry(Delivered(), entry_after(2, Retry("no"))) == ProgressEntry(state=DELIVERED, attempts=3)

    def test_failed_is_for_good_at_once(self) -> None:
        assert next_entry(Failed("never"), max_attempts=5) == ProgressEntry(state=FAILED, attempts=1, error="never")

    @pytest.mark.parametrize("outcome", [Retry("a\x00b"), Failed("a\x00b"), Unavailable("a\x00b")])
    def test_errors_are_cleaned(self, outcome: Outcome) -> None:
        assert next_entry(outcome).error == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize("outcome", [Retry, Failed, Unavailable])
def test_an_error_may_be_the_exception_itself(outcome: Any) -> None:
    assert outcome(ValueError("no")).error == "ValueError: no"
    assert outcome("no").error == "no"
    assert next_entry(outcome(ValueError("no"))).error == "ValueError: no"


@pytest.mark.parametrize("outcome", [Retry("no"), Unavailable("down"), Delivered(), Failed("never")])
def test_an_outcome_clears_the_reason_of_the_entry_before(outcome: Outcome) -> None:
    assert next_entry(outcome, ProgressEntry(error="gone", reason=NOT_REGISTERED)).reason is None


class TestRowUpdate:
    GOT_IT = ProgressEntry(state=DELIVERED, attempts=2)
    GAVE_UP = ProgressEntry(state=FAILED, attempts=5, error="never")
    SOON = ProgressEntry(attempts=1, not_before=NOW + SECOND, error="no")
    LATER = ProgressEntry(attempts=3, not_before=NOW + 2 * SECOND, error="busy")

    def test_all_delivered_is_delivered(self) -> None:
        assert row_update({"a": self.GOT_IT, "b": self.GOT_IT}) == RowUpdate(DELIVERED, 2, None, None)

    def test_an_event_without_destinations_is_delivered(self) -> None:
        assert row_update({}) == RowUpdate(DELIVERED, 0, None, None)

    def test_one_failure_fails_the_event_when_all_have_ended(self) -> None:
        assert row_update({"a": self.GOT_IT, "b": self.GAVE_UP}) == RowUpdate(FAILED, 5, None, "b: never")

    def test_as_long_as_one_waits_the_event_is_pending(self) -> None:
        assert row_update({"a": self.GAVE_UP, "b": self.SOON, "c": self.GOT_IT}).status == PENDING

    def test_it_is_due_at_the_earliest_time_with_all_errors(self) -> None:
        assert row_update({"a": self.LATER, "b": self.SOON}) == RowUpdate(PENDING, 3, NOW + SECOND, "a: busy; b: no")

    def test_attempts_of_one_that_has_ended_are_not_those_that_are_left(self) -> None:
        assert row_update({"a": self.GAVE_UP, "b": self.SOON}).attempts == 1

    def test_times_of_different_zones_compare_as_points_in_time(self) -> None:
        east = (NOW + 3 * SECOND).astimezone(timezone(timedelta(hours=5, minutes=45)))
        assert row_update({"a": self.LATER, "b": ProgressEntry(not_before=east)}).next_attempt_at == NOW + 2 * SECOND

    def test_long_errors_of_many_are_cut_together(self) -> None:
        long = ProgressEntry(state=FAILED, attempts=1, error="x" * ERROR_LENGTH)
        error = row_update({"a": long, "b": long}).error
        assert error is not None
        assert len(error) == ERROR_LENGTH
