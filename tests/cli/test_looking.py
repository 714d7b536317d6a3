"""What makes looking easier on the command line: short ids, short times, lists that fit, watching, grouped help."""

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import click
import pytest
from click.testing import CliRunner, Result

from outbox.admin.durations import format_age
from outbox.cli import cli
from outbox.cli.command_groups import GROUPS
from outbox.cli.event_id import parse_partial_id, resolve, short_id
from outbox.cli.list import next_of
from outbox.cli.options import parse_moment
from outbox.core import Outbox
from outbox.storage.models import OutboxEvent
from tests.support.table import change, claimed, emit, emit_one, stored


def run(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(cli, arguments, **options)


class TestAnId:
    def test_may_be_its_first_digits_or_its_first_and_last(self, box: Outbox) -> None:
        event = emit_one()
        text = str(event.id)
        for given in (
            text,
            text.upper(),
            f"urn:uuid:{text}",
            text[:30],
            short_id(event.id),
            f"{text[:8]}..{text[-6:]}",
        ):
            assert resolve(box, parse_partial_id(given)) == event.id
        shown = run("show", short_id(event.id), "--json")
        assert text in shown.output

    def test_of_several_events_is_refused_with_their_ids(self, box: Outbox) -> None:
        events = sorted(emit(7), key=lambda each: each.id)
        done = run("retry", str(events[0].id)[:8], "--yes")
        assert done.exit_code == 2
        assert [str(each.id) in done.output for each in events] == [True] * 5 + [False] * 2
        assert "and more" in done.output

    def test_of_no_event_is_refused(self, box: Outbox) -> None:
        emit_one()
        assert "No event has an id like 00000000" in run("show", "00000000").output

    @pytest.mark.parametrize("text", ["", "0198c0d", "0198c0dg", "…123456", "0198c0de…", "0" * 33])
    def test_that_is_none_is_refused(self, text: str) -> None:
        with pytest.raises(click.BadParameter):
            parse_partial_id(text)

    def test_selects_no_more_than_it_says(self, box: Outbox) -> None:
        """A % would select every event."""
        emit(2)
        assert run("show", "01a1f5ae..%").exit_code == 2


@pytest.mark.parametrize(("text", "ago"), [("2h", timedelta(hours=2)), ("1.5 d", timedelta(hours=36))])
def test_a_moment_may_be_so_long_ago(text: str, ago: timedelta) -> None:
    assert abs(parse_moment(text) - (datetime.now(UTC) - ago)) < timedelta(minutes=5)


def test_a_moment_may_be_a_time() -> None:
    assert parse_moment("2026-01-31") == datetime(2026, 1, 31, tzinfo=UTC)
    with pytest.raises(click.BadParameter):
        parse_moment("yesterday")


def test_since_and_until_take_both(box: Outbox) -> None:
    old, new = emit(2)
    change(old, created_at=stored(old).created_at - timedelta(minutes=30))
    assert str(new.id) in run("list", "--since", "15m").output
    assert str(old.id) not in run("list", "--since", "15m").output
    assert str(new.id) not in run("list", "--until", "15m").output


def test_a_list_fits_a_terminal_of_80_columns(box: Outbox) -> None:
    failed, waiting = emit(2, "order.placed.by.a.customer.with.a.long.name")
    progress = {"warehouse-in-hamburg-altona": {"state": "failed", "error": "x" * 90}, "b": {"state": "delivered"}}
    change(
        failed,
        status="failed",
        next_attempt_at=None,
        progress=progress,
        error_message="warehouse-in-hamburg-altona: HTTP 422 " + "x" * 90,
    )
    change(waiting, next_attempt_at=box.dialect.now() + timedelta(minutes=5, seconds=30))
    with (
        mock.patch("outbox.cli.output._terminal_width", return_value=80),
        mock.patch("outbox.cli.list.is_terminal", return_value=True),
    ):
        lines = run("list").output.splitlines()
    assert lines[0].split() == ["ID", "AGE", "NEXT", "TYPE", "DESTINATION", "ERROR"]
    assert all(len(line) <= 80 for line in lines)
    by_id = {line[:15]: line for line in lines[1:]}
    assert "failed" in by_id[short_id(failed.id)]
    assert "HTTP 422" in by_id[short_id(failed.id)]
    assert "warehouse" in by_id[short_id(failed.id)]
    assert "in 5 min" in by_id[short_id(waiting.id)]
    assert str(failed.id) in run("list").output  # in a pipe nothing is cut


def test_what_is_next_is_said_in_a_word(box: Outbox) -> None:
    event, now = emit_one(), box.dialect.now()
    assert next_of(stored(event), now + timedelta(minutes=1)) == "due"
    claimed(box)
    assert next_of(stored(event), now) == "sending"
    assert next_of(OutboxEvent(status="failed"), now) == "failed"


@pytest.mark.parametrize(
    ("span", "text"),
    [(timedelta(0), "0 s"), (timedelta(seconds=59.9), "59 s"), (timedelta(hours=3.9), "3 h"), (timedelta(9), "9 d")],
)
def test_an_age_is_short(span: timedelta, text: str) -> None:
    assert format_age(span) == text


def test_watching_prints_again_until_ctrl_c_and_survives_an_outage(
    box: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            with box.dialect.connection():
                box.dialect.run(f"DROP TABLE {box.dialect.tables.history}")
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("outbox.cli.watch.time.sleep", sleep)
    done = run("destinations", "--watch", "0.5")
    assert (done.exit_code, waits) == (0, [0.5] * 3)
    assert done.output.count("No worker has recorded") == 2
    assert "outbox init" in done.output


def test_the_help_lists_each_command_once_by_what_it_is_for() -> None:
    names = [name for group in GROUPS.values() for name in group]
    assert len(names) == len(set(names))
    assert set(names) <= cli.commands.keys()
    said = run("--help").output
    assert [title for title in GROUPS if f"\n{title}:\n" in said] == list(GROUPS)
    assert "outbox list --status failed --since 2h" in said
    assert all(f"\n  {name} " in said for name in cli.commands)


@pytest.mark.parametrize(("value", "is_coloured"), [("", True), ("1", False)])
def test_no_color_is_obeyed(box: Outbox, value: str, is_coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", value)
    assert ("\x1b[" in run("status", color=True).output) is is_coloured
