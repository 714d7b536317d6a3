"""The column `progress`: its format survives writing and reading, and rows of the version before are understood."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.storage import progress
from outbox.storage.models import DELIVERED, FAILED
from outbox.storage.progress import NOT_REGISTERED, OTHER_DESTINATIONS, RETIRED, WAITING, ProgressEntry

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@given(
    st.builds(
        ProgressEntry,
        state=st.sampled_from([WAITING, DELIVERED, FAILED, RETIRED]),
        attempts=st.integers(0, 1_000),
        waits=st.integers(0, 1_000),
        absences=st.integers(0, 1_000),
        since=st.none() | st.datetimes(timezones=st.just(UTC)),
        asked_seconds=st.floats(0, 1e9),
        not_before=st.none() | st.datetimes(timezones=st.just(UTC)),
        error=st.none() | st.text(),
        reason=st.none() | st.just(NOT_REGISTERED),
    )
)
def test_an_entry_survives_being_written_and_read(entry: ProgressEntry) -> None:
    assert progress.parse(json.loads(progress.encode({"name": entry}))) == {"name": entry}


@pytest.mark.parametrize(("not_before", "due"), [(None, True), (NOW, True), (NOW + SECOND, False)])
def test_an_entry_is_due_from_its_time_on(not_before: datetime | None, due: bool) -> None:
    assert ProgressEntry(not_before=not_before).is_due(NOW) is due


@pytest.mark.parametrize("state", [DELIVERED, FAILED, RETIRED])
def test_an_entry_that_has_ended_is_never_due(state: str) -> None:
    assert not ProgressEntry(state=state).is_due(NOW)


def test_a_key_that_this_version_does_not_know_is_ignored() -> None:
    assert progress.parse({"name": {"state": WAITING, "of_a_later_version": 1}}) == {"name": ProgressEntry()}


def test_the_error_of_the_version_before_is_read_as_its_reason_code() -> None:
    (entry,) = progress.parse({"name": {"state": WAITING, "error": "'name' is not registered in this worker"}}).values()
    assert entry.reason == NOT_REGISTERED


def test_a_reason_code_does_not_depend_on_the_text_of_the_error() -> None:
    (entry,) = progress.parse({"name": {"error": "in other words", "reason": NOT_REGISTERED}}).values()
    assert entry.reason == NOT_REGISTERED


def test_an_entry_without_trouble_has_no_reason() -> None:
    assert ProgressEntry.from_json({"state": WAITING, "error": "no"}).reason is None
    assert "reason" not in ProgressEntry(error="no").to_json()


class TestTheFirstDueTime:
    def test_is_kept_by_the_entries_that_wait(self) -> None:
        text = progress.encode({"a": ProgressEntry(not_before=NOW), "b": ProgressEntry(state=DELIVERED)}, NOW - SECOND)
        column = json.loads(text)
        assert [name for name, entry in column.items() if "first_due" in entry] == ["a"]
        assert progress.first_due_at(column) == NOW - SECOND
        assert progress.was_put_off(column)

    @pytest.mark.parametrize("column", [{}, {"a": None}, {"a": {"state": WAITING}}], ids=str)
    def test_is_unknown_if_no_entry_has_it(self, column: dict[str, dict[str, str]]) -> None:
        assert progress.first_due_at(column) is None
        assert not progress.was_put_off(column)


def test_a_retry_starts_the_entries_again_that_are_not_delivered() -> None:
    column = {"a": {"state": DELIVERED, "attempts": 2}, "b": {"state": FAILED, "attempts": 5, "error": "no"}}
    again = progress.restarted(column)
    assert json.loads(str(again)) == {"a": {"state": DELIVERED, "attempts": 2}, "b": {"state": WAITING}}
    assert progress.restarted(None) is None
    assert progress.restarted({}) is None


def test_a_replay_to_one_destination_marks_all_others_delivered() -> None:
    assert json.loads(progress.replayed_to("b", ["a", "b"])) == {
        "a": {"state": DELIVERED},
        "b": {"state": WAITING},
        OTHER_DESTINATIONS: {"state": DELIVERED},
    }
