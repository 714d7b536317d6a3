"""`outbox export`, `outbox tail`, and the completion of names."""

import gzip
import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

import outbox
from outbox.cli import cli
from outbox.core import Outbox
from tests.support.table import change, emit, emit_one


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


class TestExport:
    def test_prints_a_line_for_each_event_that_matches(self, box: Outbox) -> None:
        with mock.patch("outbox.cli.export.PAGE", 2):
            events = emit(5, payload={"text": "a\nb\x1b", "password": "hush"})
            emit_one("other")
            found = lines(run("export", "--type", "order.placed").output)
        assert [each["id"] for each in found] == sorted((str(each.id) for each in events), reverse=True)
        assert {json.dumps(each["payload"]) for each in found} == {json.dumps({"text": "a\nb\x1b", "password": "•••"})}
        assert len(lines(run("export", "--limit", "3").output)) == 3
        assert "\x1b" not in run("export").output

    def test_writes_a_file_for_its_owner_compressed_if_it_is_named_so(self, box: Outbox, tmp_path: Path) -> None:
        emit(3)
        plain, packed = tmp_path / "events.ndjson", tmp_path / "events.ndjson.gz"
        for file in (plain, packed):
            done = run("export", "--output", str(file))
            assert done.output == f"3 events exported to {file}.\n"
            assert file.stat().st_mode & 0o777 == 0o600
        assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()

    def test_of_masked_values_is_written_down(self, box: Outbox) -> None:
        event = emit_one(payload={"password": "hush"})
        assert "hush" not in run("export").output
        assert json.loads(run("audit", "--json").output) == []
        assert "hush" in run("export", "--unmasked", "--type", "order.placed", "--limit", "7").output
        (entry,) = json.loads(run("audit", "--json").output)
        assert (entry["action"], entry["outcome"], entry["affected"]) == ("export unmasked", "done", 1)
        assert (entry["filters"], entry["parameters"]) == ({"event_type": "order.placed"}, {"limit": 7})
        assert run("audit", entry["id"]).output.split() == [str(event.id)]

    def test_that_replaces_a_file_lets_only_its_owner_read_it(self, box: Outbox, tmp_path: Path) -> None:
        emit(1)
        file = tmp_path / "events.ndjson"
        file.touch(0o644)
        run("export", "--output", str(file))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@contextmanager
def looks(*steps: object) -> Iterator[None]:
    """Run a step whenever the command sleeps, and interrupt it after the last."""
    remaining = list(steps)

    def sleep(seconds: float) -> None:
        if not remaining:
            raise KeyboardInterrupt
        step = remaining.pop(0)
        assert callable(step)
        step()

    with mock.patch("outbox.cli.tail.time.sleep", sleep):
        yield


class TestTail:
    def test_prints_the_newest_events_and_ends(self, box: Outbox) -> None:
        events = sorted(emit(4), key=lambda each: each.id)
        printed = run("tail", "-n", "2").output.splitlines()
        assert [line.split()[1] for line in printed] == [str(each.id) for each in events[2:]]

    def test_follows_what_comes_and_what_becomes_of_it(self, box: Outbox) -> None:
        old = emit_one()

        def fail() -> None:
            change(old, status="failed", next_attempt_at=None, error_message="no such\x1b account")

        with looks(lambda: emit_one("order.paid"), fail, lambda: None):
            done = run("tail", "-f", "-n", "0")
        first, second = done.output.splitlines()
        assert done.exit_code == 0
        assert "order.paid" in first
        assert second.split()[1:3] == [str(old.id), "failed"]
        assert second.endswith("no such  account")


def completed(*words: str) -> list[str]:
    *before, incomplete = words
    found = ShellComplete(cli, {}, "outbox", "_OUTBOX_COMPLETE").get_completions(list(before), incomplete)
    return [each.value for each in found]


class TestCompletion:
    def test_offers_names_that_the_database_has(self, box: Outbox) -> None:
        outbox.handler("order.*", name="crm")(lambda event: None)
        emit(2, "order.placed")
        emit(1, "user.created")
        assert completed("pause", "c") == ["crm"]
        assert completed("list", "--destination", "") == ["crm"]
        assert completed("list", "--type", "order") == ["order.placed"]
        assert completed("list", "--actor", "") == []

    def test_is_silent_without_a_database(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OUTBOX_DATABASE_URL", f"sqlite:///{tmp_path / 'none' / 'x.db'}")
        assert completed("list", "--type", "") == []
