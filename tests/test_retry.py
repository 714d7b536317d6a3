"""Decisions about retries are pure: from a standing and an outcome to the next standing."""

import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.delivery.retry import (
    ERROR_LENGTH,
    JITTER,
    LONGEST_WAIT,
    WAITING,
    Standing,
    Verdict,
    after,
    backoff,
    clean,
    verdict,
)
from outbox.destinations.outcome import Delivered, Failed, Outcome, Retry
from outbox.errors import Unavailable
from outbox.settings import Settings
from outbox.storage.models import DELIVERED, FAILED, PENDING
from outbox.storage.timestamp import EARLIEST

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
EXACT = Settings(backoff_jitter=False)
SECOND = timedelta(seconds=1)
MAX_AGE = timedelta(hours=72)


def next_standing(
    outcome: Outcome, standing: Standing | None = None, now: datetime = NOW, max_attempts: int = 5
) -> Standing:
    return after(Standing() if standing is None else standing, outcome, now, max_attempts, EXACT)


def standing_after(count: int, outcome: Outcome, max_attempts: int = 1_000) -> Standing:
    standing = Standing()
    for _ in range(count):
        standing = next_standing(outcome, standing, max_attempts=max_attempts)
    return standing


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
        standing = standing_after(attempt, Retry("no"))
        assert (standing.state, standing.attempts, standing.error) == (WAITING, attempt, "no")
        assert standing.not_before == NOW + timedelta(seconds=seconds)

    def test_attempts_are_used_up_exactly_at_the_limit(self) -> None:
        assert standing_after(4, Retry("no"), max_attempts=5).state == WAITING
        assert standing_after(5, Retry("no"), max_attempts=5) == Standing(state=FAILED, attempts=5, error="no")

    def test_a_single_attempt_is_the_last(self) -> None:
        assert next_standing(Retry("no"), max_attempts=1).state == FAILED

    @pytest.mark.parametrize("wait", [timedelta(0), timedelta(hours=30)])
    def test_a_time_of_its_own_overrides_the_backoff(self, wait: timedelta) -> None:
        assert next_standing(Retry("no", wait)).not_before == NOW + wait
        assert next_standing(Retry("no", NOW + wait)).not_before == NOW + wait

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
        assert next_standing(outcome("no", asked)).not_before == due

    def test_it_does_not_end_by_age(self) -> None:
        old = Standing(attempts=1, since=NOW - 10 * MAX_AGE)
        assert next_standing(Retry("no"), old).state == WAITING


class TestUnavailable:
    def test_it_costs_no_attempt_and_waits_longer_each_time(self) -> None:
        waits = [standing_after(count, Unavailable("down"), max_attempts=1) for count in (1, 2, 3, 50)]
        assert {standing.attempts for standing in waits} == {0}
        assert [standing.not_before for standing in waits] == [
            NOW + timedelta(seconds=seconds) for seconds in (60, 120, 240, 3600)
        ]

    @pytest.mark.parametrize(("age", "state"), [(MAX_AGE - SECOND, WAITING), (MAX_AGE, FAILED)])
    def test_it_ends_at_the_maximum_age(self, age: timedelta, state: str) -> None:
        first = next_standing(Unavailable("down"))
        assert next_standing(Unavailable("down"), first, NOW + age).state == state

    def test_the_end_names_the_error_and_the_setting(self) -> None:
        standing = next_standing(Unavailable("down"), Standing(since=NOW - MAX_AGE))
        assert standing.error == "down (given up after 72 hours, OUTBOX_MAX_AGE_HOURS)"

    def test_the_age_counts_from_the_first_trouble_of_any_kind(self) -> None:
        refused = next_standing(Retry("no"))
        assert next_standing(Unavailable("down"), refused, NOW + MAX_AGE - SECOND).state == WAITING
        assert next_standing(Unavailable("down"), refused, NOW + MAX_AGE).state == FAILED

    @pytest.mark.parametrize("not_before", [timedelta(days=4), NOW + timedelta(days=4)])
    def test_a_wait_that_was_asked_for_does_not_count(self, not_before: timedelta | datetime) -> None:
        asked = next_standing(Retry("not yet", not_before))
        later = NOW + timedelta(days=4)
        down = next_standing(Unavailable("down"), asked, later)
        assert (down.state, down.attempts) == (WAITING, 1)
        assert next_standing(Unavailable("down"), down, later + MAX_AGE - SECOND).state == WAITING
        assert next_standing(Unavailable("down"), down, later + MAX_AGE).state == FAILED

    def test_being_reached_again_starts_its_waits_anew(self) -> None:
        refused = next_standing(Retry("no"), standing_after(5, Unavailable("down")))
        waiting = next_standing(Unavailable("down"), refused)
        assert (waiting.attempts, waiting.not_before) == (1, NOW + timedelta(seconds=60))

    def test_a_time_of_its_own_overrides_the_backoff(self) -> None:
        standing = next_standing(Unavailable("down", not_before=timedelta(minutes=5)))
        assert standing.not_before == NOW + timedelta(minutes=5)


class TestEnds:
    def test_delivered_counts_the_attempt_and_forgets_the_error(self) -> None:
        assert next_standing(Delivered(), standing_after(2, Retry("no"))) == Standing(state=DELIVERED, attempts=3)

    def test_failed_is_for_good_at_once(self) -> None:
        assert next_standing(Failed("never"), max_attempts=5) == Standing(state=FAILED, attempts=1, error="never")

    @pytest.mark.parametrize("outcome", [Retry("a\x00b"), Failed("a\x00b"), Unavailable("a\x00b")])
    def test_errors_are_cleaned(self, outcome: Outcome) -> None:
        assert next_standing(outcome).error == "a\N{REPLACEMENT CHARACTER}b"


class TestError:
    @given(st.text(st.characters(codec=None)))
    def test_any_text_becomes_one_that_every_database_stores(self, text: str) -> None:
        cleaned = clean(text)
        assert "\x00" not in cleaned.encode().decode()
        assert len(cleaned) <= ERROR_LENGTH

    @pytest.mark.parametrize("length", [ERROR_LENGTH - 1, ERROR_LENGTH])
    def test_one_up_to_the_limit_stays_whole(self, length: int) -> None:
        assert clean("x" * length) == "x" * length

    def test_a_longer_one_is_cut_and_shows_it(self) -> None:
        assert clean("x" * (ERROR_LENGTH + 1)) == "x" * (ERROR_LENGTH - 1) + "…"


@pytest.mark.parametrize("outcome", [Retry, Failed, Unavailable])
def test_an_error_may_be_the_exception_itself(outcome: Any) -> None:
    assert outcome(ValueError("no")).error == "ValueError: no"
    assert outcome("no").error == "no"
    assert next_standing(outcome(ValueError("no"))).error == "ValueError: no"


class TestStanding:
    @given(
        st.builds(
            Standing,
            state=st.sampled_from([WAITING, DELIVERED, FAILED]),
            attempts=st.integers(0, 1_000),
            waits=st.integers(0, 1_000),
            since=st.none() | st.datetimes(timezones=st.just(UTC)),
            asked_seconds=st.floats(0, 1e9),
            not_before=st.none() | st.datetimes(timezones=st.just(UTC)),
            error=st.none() | st.text(),
        )
    )
    def test_it_survives_being_written_down(self, standing: Standing) -> None:
        assert Standing.from_json(standing.to_json()) == standing

    @pytest.mark.parametrize(("not_before", "due"), [(None, True), (NOW, True), (NOW + SECOND, False)])
    def test_it_is_due_from_its_time_on(self, not_before: datetime | None, due: bool) -> None:
        assert Standing(not_before=not_before).is_due(NOW) is due

    @pytest.mark.parametrize("state", [DELIVERED, FAILED])
    def test_one_that_has_ended_is_never_due(self, state: str) -> None:
        assert not Standing(state=state).is_due(NOW)


class TestVerdict:
    GOT_IT = Standing(state=DELIVERED, attempts=2)
    GAVE_UP = Standing(state=FAILED, attempts=5, error="never")
    SOON = Standing(attempts=1, not_before=NOW + SECOND, error="no")
    LATER = Standing(attempts=3, not_before=NOW + 2 * SECOND, error="busy")

    def test_all_delivered_is_delivered(self) -> None:
        assert verdict({"a": self.GOT_IT, "b": self.GOT_IT}) == Verdict(DELIVERED, 2, None, None)

    def test_nobody_to_ask_is_delivered(self) -> None:
        assert verdict({}) == Verdict(DELIVERED, 0, None, None)

    def test_one_failure_fails_the_event_when_all_have_ended(self) -> None:
        assert verdict({"a": self.GOT_IT, "b": self.GAVE_UP}) == Verdict(FAILED, 5, None, "b: never")

    def test_as_long_as_one_waits_the_event_is_pending(self) -> None:
        assert verdict({"a": self.GAVE_UP, "b": self.SOON, "c": self.GOT_IT}).status == PENDING

    def test_it_is_due_at_the_earliest_time_with_all_errors(self) -> None:
        assert verdict({"a": self.LATER, "b": self.SOON}) == Verdict(PENDING, 3, NOW + SECOND, "a: busy; b: no")

    def test_attempts_of_one_that_has_ended_are_not_those_that_are_left(self) -> None:
        assert verdict({"a": self.GAVE_UP, "b": self.SOON}).attempts == 1

    def test_times_compare_as_moments_whatever_their_zone(self) -> None:
        east = (NOW + 3 * SECOND).astimezone(timezone(timedelta(hours=5, minutes=45)))
        assert verdict({"a": self.LATER, "b": Standing(not_before=east)}).next_attempt_at == NOW + 2 * SECOND

    def test_long_errors_of_many_are_cut_together(self) -> None:
        long = Standing(state=FAILED, attempts=1, error="x" * ERROR_LENGTH)
        error = verdict({"a": long, "b": long}).error
        assert error is not None
        assert len(error) == ERROR_LENGTH
