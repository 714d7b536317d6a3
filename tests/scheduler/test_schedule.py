"""Schedules: which times they have, what they are called, and which are refused."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from outbox.errors import RegistrationError
from outbox.scheduler.schedule import Schedule, make_schedule

# A Wednesday.
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


def cron(expression: Any, timezone: Any = "UTC") -> Schedule:
    return make_schedule(expression, {}, timezone)


def every(**units: Any) -> Schedule:
    return make_schedule(None, units, "UTC")


def times(schedule: Schedule, after: datetime, count: int) -> list[datetime]:
    found = []
    for _ in range(count):
        after = schedule.next_after(after)
        found.append(after)
    return found


def shown(schedule: Schedule, after: datetime, count: int) -> list[str]:
    """The next times, as `day hour:minute` in UTC."""
    return [f"{time:%d %H:%M}" for time in times(schedule, after, count)]


class TestIntervals:
    def test_are_counted_from_the_epoch_wherever_one_starts_to_look(self) -> None:
        schedule = every(minutes=7)
        for after in (NOON, NOON + timedelta(seconds=1), NOON + timedelta(minutes=3, microseconds=5)):
            time = schedule.next_after(after)
            assert timedelta(0) < time - after <= timedelta(minutes=7)
            assert time.timestamp() % (7 * 60) == 0

    @pytest.mark.parametrize(
        "units",
        [{"seconds": 1}, {"seconds": 7}, {"minutes": 5}, {"hours": 1.5}, {"days": 1}, {"weeks": 3}, {"days": 365}],
    )
    def test_come_at_equal_distances_and_never_twice(self, units: dict[str, float]) -> None:
        found = times(every(**units), NOON, 500)
        assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(**units)}

    def test_are_written_in_the_largest_units(self) -> None:
        assert every(seconds=300).text == every(minutes=5).text == "minutes=5"
        assert every(minutes=1, seconds=30).text == "minutes=1, seconds=30"


class TestCronExpressions:
    @pytest.mark.parametrize(
        ("expression", "expected"),
        [
            ("0 3 * * *", ["19 03:00", "20 03:00"]),
            ("*/20 * * * *", ["18 12:20", "18 12:40", "18 13:00"]),
            ("30 12,18 * * *", ["18 12:30", "18 18:30", "19 12:30"]),
            ("0 0 1 * *", ["01 00:00", "01 00:00"]),
            ("0 0 last * *", ["30 00:00", "31 00:00"]),
            ("0 0 1 jan *", ["01 00:00"]),
        ],
    )
    def test_have_these_times(self, expression: str, expected: list[str]) -> None:
        assert shown(cron(expression), NOON, len(expected)) == expected

    # The 22nd is a Sunday. APScheduler itself counts from Monday.
    @pytest.mark.parametrize(
        ("days", "expected"),
        [
            ("0", ["22", "29"]),
            ("7", ["22", "29"]),
            ("sun", ["22", "29"]),
            ("1", ["23", "30"]),
            ("SAT", ["21", "28"]),
            ("1-5", ["19", "20", "23"]),
            ("mon-fri", ["19", "20", "23"]),
            ("fri-sun", ["20", "21", "22", "27"]),
            ("5-7", ["20", "21", "22", "27"]),
            ("0-1", ["22", "23", "29"]),
            ("*/2", ["19", "21", "22", "24"]),
            ("1-5/2", ["20", "23", "25"]),
            ("2,6", ["21", "24", "28"]),
            ("*", ["19", "20"]),
            ("0-7", ["19", "20"]),
        ],
    )
    def test_count_the_days_of_the_week_as_cron_does(self, days: str, expected: list[str]) -> None:
        found = times(cron(f"0 0 * * {days}"), NOON, len(expected))
        assert [f"{time:%d}" for time in found] == expected

    def test_with_a_day_of_the_month_and_one_of_the_week_run_on_either_as_cron_does(self) -> None:
        assert shown(cron("0 0 25 * fri"), NOON, 4) == ["20 00:00", "25 00:00", "27 00:00", "04 00:00"]

    def test_with_a_star_and_a_step_for_the_day_run_on_days_that_match_both_as_cron_does(self) -> None:
        assert shown(cron("0 0 */2 * mon"), NOON, 2) == ["23 00:00", "07 00:00"]

    def test_with_a_day_that_never_comes_and_one_of_the_week_run_on_the_latter(self) -> None:
        assert shown(cron("0 0 31 2 mon"), NOON, 2) == ["01 00:00", "08 00:00"]

    def test_are_in_their_timezone(self) -> None:
        assert shown(cron("0 3 * * *", "Asia/Tokyo"), NOON, 2) == ["18 18:00", "19 18:00"]


class TestDaylightSaving:
    """Berlin: 2026-10-25 03:00 becomes 02:00, and 2027-03-28 02:00 becomes 03:00. docs/how-to/periodic-jobs.md."""

    AUTUMN = datetime(2026, 10, 24, 12, tzinfo=UTC)
    SPRING = datetime(2027, 3, 27, 12, tzinfo=UTC)

    def test_a_time_in_the_hour_that_comes_twice_runs_twice(self) -> None:
        schedule = cron("30 2 * * *", "Europe/Berlin")
        assert shown(schedule, self.AUTUMN, 3) == ["25 00:30", "25 01:30", "26 01:30"]

    def test_a_time_in_the_hour_that_is_left_out_runs_an_hour_later_by_the_clock(self) -> None:
        schedule = cron("30 2 * * *", "Europe/Berlin")
        assert shown(schedule, self.SPRING, 2) == ["28 01:30", "29 00:30"]  # 03:30 and 02:30 in Berlin

    @pytest.mark.parametrize("hour", [1, 3, 4])
    def test_a_time_outside_that_hour_runs_once(self, hour: int) -> None:
        schedule = cron(f"30 {hour} * * *", "Europe/Berlin")
        for start in (self.AUTUMN, self.SPRING):
            found = [time.astimezone(ZoneInfo("Europe/Berlin")) for time in times(schedule, start, 3)]
            assert {(time.hour, time.minute) for time in found} == {(hour, 30)}
            assert {(later.date() - earlier.date()).days for earlier, later in pairwise(found)} == {1}

    def test_every_half_hour_comes_every_half_hour(self) -> None:
        schedule = cron("*/30 * * * *", "Europe/Berlin")
        for start in (self.AUTUMN, self.SPRING):
            found = times(schedule, start, 60)
            assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(minutes=30)}

    def test_every_hour_comes_every_hour(self) -> None:
        schedule = cron("15 * * * *", "Europe/Berlin")
        for start in (self.AUTUMN, self.SPRING):
            found = times(schedule, start, 30)
            assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(hours=1)}

    @pytest.mark.parametrize("expression", ["*/7 * * * *", "30 2 * * *", "0 2,3 * * *", "15,45 1-3 * * sun"])
    @pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "America/Havana", "Australia/Lord_Howe"])
    def test_times_only_go_forward_the_whole_year(self, expression: str, zone: str) -> None:
        schedule = cron(expression, zone)
        for start in (datetime(2026, 3, 7, tzinfo=UTC), self.AUTUMN, datetime(2026, 10, 31, tzinfo=UTC), self.SPRING):
            found = times(schedule, start, 400)
            assert found == sorted(set(found))


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 3 * * *", "at 03:00 every day"),
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("5 * * * *", "at minute 5 of every hour"),
        ("0 */2 * * *", "at minute 0, every 2 hours"),
        ("15,45 1-3 * * *", "at minutes 15 and 45, in the hours 1 to 3"),
        ("30 8 * * 1-5", "at 08:30 from Monday to Friday"),
        ("0 9,17 * * sun,thu", "at 09:00 and 17:00 on Thursday and Sunday"),
        ("0 0 1,15 * *", "at 00:00 on days 1 and 15 of the month"),
        ("0 0 1 * 5", "at 00:00 on day 1 of the month, and on Friday"),
        ("0 0 */2 * 5", "at 00:00 every 2 days of the month, if that is on Friday"),
        ("0 0 last jan,6-8 *", "at 00:00 on the last day of the month in January and June to August"),
        ("0 12 * 12 *", "at 12:00 every day in December"),
    ],
)
def test_a_cron_expression_is_said_in_words(expression: str, words: str) -> None:
    assert cron(expression).words == words


@pytest.mark.parametrize(
    ("units", "words"),
    [
        ({"minutes": 5}, "every 5 minutes"),
        ({"hours": 1}, "every hour"),
        ({"seconds": 90}, "every 1 minute and 30 seconds"),
        ({"days": 8, "hours": 2}, "every 1 week, 1 day and 2 hours"),
    ],
)
def test_an_interval_is_said_in_words(units: dict[str, float], words: str) -> None:
    assert every(**units).words == words


class TestMistakes:
    @pytest.mark.parametrize(
        ("expression", "error"),
        [
            (
                "61 * * * *",
                r"the field minute is '61', which is invalid: the last value \(61\) is higher than the maximum",
            ),
            ("* 24 * * *", "the field hour is '24', which is invalid"),
            ("* * 0 * *", "the field day of the month is '0', which is invalid"),
            ("* * * foo *", "the field month is 'foo', which is invalid"),
            ("* * * * 8", "the field day of the week is '8', which is invalid: the days are 0 to 7"),
            ("* * * * 5-1", "the field day of the week is '5-1', which is invalid"),
            ("* * * * *-3", "the field day of the week is"),
            ("* * * * */0", "the step must be at least 1"),
            ("* * * * noon", "write 0 to 7 or sun to sat"),
            ("* * * * xyz", "the days are sun, mon"),
            ("*/0 * * * *", "the field minute is"),
            ("* * *", "has 3 fields, and needs 5: minute, hour"),
            ("@daily", "has 1 fields, and needs 5"),
            ("", "has 0 fields, and needs 5"),
            ("0 0 30 2 *", "never comes"),
            (5, "cron must be text"),
        ],
    )
    def test_in_a_cron_expression_are_quoted(self, expression: object, error: str) -> None:
        with pytest.raises(RegistrationError, match=error):
            cron(expression)

    @pytest.mark.parametrize(
        ("units", "error"),
        [
            ({"minutes": 0}, "from 1 second to 3650 days; minutes=0 is not"),
            ({"minutes": -5}, "minutes=-5 is not"),
            ({"seconds": 0.5}, "seconds=0.5 is not"),
            ({"seconds": 1.5}, "a whole number of seconds"),
            ({"days": 4000}, "days=4000 is not"),
            ({"days": 1e300}, "is not"),
            ({"minutes": "5"}, "minutes must be a number, not '5'"),
            ({"minutes": True}, "minutes must be a number"),
            ({"minutes": float("nan")}, "minutes must be a number"),
            ({}, "needs a schedule"),
        ],
    )
    def test_in_an_interval_are_quoted(self, units: dict[str, Any], error: str) -> None:
        with pytest.raises(RegistrationError, match=error):
            every(**units)

    @pytest.mark.parametrize("zone", ["Europe/Nowhere", "", "../UTC", "/etc/passwd", None, 5])
    def test_an_unknown_timezone_is_named(self, zone: object) -> None:
        with pytest.raises(RegistrationError, match="There is no timezone"):
            cron("0 3 * * *", zone)

    def test_both_a_cron_expression_and_an_interval_are_refused(self) -> None:
        with pytest.raises(
            RegistrationError, match=r"either cron or an interval, not both: cron='0 3 \* \* \*', minutes=5"
        ):
            make_schedule("0 3 * * *", {"minutes": 5}, "UTC")

    def test_a_timezone_for_an_interval_is_refused(self) -> None:
        with pytest.raises(RegistrationError, match="has no effect on an interval"):
            make_schedule(None, {"days": 1}, "Europe/Berlin")
