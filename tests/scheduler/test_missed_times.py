"""Which of the scheduled times that have passed are run."""

from datetime import UTC, datetime, timedelta

import pytest

from outbox.destinations.periodic_job import CATCH_UP
from outbox.scheduler.missed_times import MOST_RUNS, due_times
from outbox.scheduler.schedule import Schedule, make_schedule

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def every(**units: float) -> Schedule:
    return make_schedule(None, units, "UTC")


@pytest.mark.parametrize("catch_up", CATCH_UP)
class TestWithoutDelay:
    def test_nothing_is_due_before_the_time(self, catch_up: str) -> None:
        assert due_times(every(minutes=5), catch_up, NOON, NOON + 5 * MINUTE - timedelta(microseconds=1)) is None

    def test_one_run_is_due_at_the_time(self, catch_up: str) -> None:
        due = due_times(every(minutes=5), catch_up, NOON, NOON + 5 * MINUTE)
        assert due is not None
        assert (due.runs, due.last, due.missed) == ([NOON + 5 * MINUTE], NOON + 5 * MINUTE, None)

    def test_nothing_is_due_again_after_it(self, catch_up: str) -> None:
        assert due_times(every(minutes=5), catch_up, NOON + 5 * MINUTE, NOON + 6 * MINUTE) is None


def test_latest_runs_the_latest_missed_time_and_names_the_one_before() -> None:
    due = due_times(every(minutes=5), "latest", NOON, NOON + 17 * MINUTE)
    assert due is not None
    assert (due.runs, due.last, due.missed) == ([NOON + 15 * MINUTE], NOON + 15 * MINUTE, NOON + 10 * MINUTE)


def test_all_runs_every_missed_time_in_order() -> None:
    due = due_times(every(minutes=5), "all", NOON, NOON + 17 * MINUTE)
    assert due is not None
    assert (due.runs, due.missed) == ([NOON + number * MINUTE for number in (5, 10, 15)], None)


def test_all_is_bounded_to_the_latest_times() -> None:
    due = due_times(every(minutes=1), "all", NOON, NOON + 300 * MINUTE)
    assert due is not None
    assert due.runs == [NOON + number * MINUTE for number in range(201, 301)]
    assert len(due.runs) == MOST_RUNS
    assert due.missed == NOON + 200 * MINUTE


@pytest.mark.parametrize(("late_seconds", "runs"), [(0, 1), (60, 1), (61, 0)])
def test_none_runs_a_time_only_if_it_is_not_late(late_seconds: float, runs: int) -> None:
    due = due_times(every(minutes=5), "none", NOON, NOON + 5 * MINUTE + timedelta(seconds=late_seconds))
    assert due is not None
    assert (len(due.runs), due.last) == (runs, NOON + 5 * MINUTE)
    assert due.missed == (None if runs else NOON + 5 * MINUTE)


@pytest.mark.parametrize("catch_up", CATCH_UP)
def test_years_of_missed_seconds_take_no_time(catch_up: str) -> None:
    asked = 0

    class Counted:
        text, words, timezone = "", "", "UTC"

        def next_after(self, moment: datetime) -> datetime:
            nonlocal asked
            asked += 1
            return every(seconds=1).next_after(moment)

    now = NOON + timedelta(days=3000, microseconds=400)
    due = due_times(Counted(), catch_up, NOON, now)
    assert due is not None
    assert due.last == due.runs[-1] == NOON + timedelta(days=3000)
    assert asked < 10_000


@pytest.mark.parametrize("minutes", range(0, 240, 7))
def test_the_latest_time_is_found_from_wherever_one_looks_across_a_change_to_summer_time(minutes: int) -> None:
    schedule = make_schedule("30 2 * * *", {}, "Europe/Berlin")
    start = datetime(2026, 11, 1, tzinfo=UTC)  # more than MOST_RUNS days before
    now = datetime(2027, 3, 28, 1, 30, tzinfo=UTC) + minutes * MINUTE
    due = due_times(schedule, "latest", start, now)
    assert due is not None
    assert due.last == datetime(2027, 3, 28, 1, 30, tzinfo=UTC)
