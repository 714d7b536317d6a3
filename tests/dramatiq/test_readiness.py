"""A worker that could deliver nothing does not start, and prints one line that says why."""

import sys
import types

import pytest

from outbox.dramatiq.worker import should_become_worker
from tests.support.processes import BIN, HANDLERS, MakeStage, Program, Stage


def refused(stage: Stage, *modules: str) -> str:
    """Start a worker that must fail to start; return the line of its error."""
    worker: Program = stage.start("worker", BIN / "dramatiq", "jobs", *modules, "-p", "1", "-t", "1")
    assert worker.wait() != 0
    assert "Traceback" not in worker.said()
    (line,) = [line for line in worker.said().splitlines() if line.startswith("outbox: ")]
    return line


def test_without_handlers(stage: Stage) -> None:
    assert "no handler is registered" in refused(stage)


def test_without_handlers_the_command_names_the_modules_that_it_has_imported(stage: Stage) -> None:
    worker = stage.start("worker", BIN / "outbox", "worker", "tests.apps", "tests.support.servers", "-p", "1")
    assert worker.wait() != 0
    assert (
        "outbox: no handler is registered, and no other destination (imported: tests.apps, tests.support.servers)"
        in (worker.said())
    )
    assert "Traceback" not in worker.said()


def test_with_a_module_that_is_none_the_command_says_so_in_one_line(stage: Stage) -> None:
    worker = stage.start("worker", BIN / "outbox", "worker", "tests.nowhere", "-p", "1")
    assert worker.wait() != 0
    assert "outbox: There is no module 'tests.nowhere'" in worker.said()
    assert "Traceback" not in worker.said()


def test_without_tables(stage: Stage) -> None:
    stage.box.dialect.run("DROP TABLE outbox_event, outbox_schema")
    assert "run `outbox init`" in refused(stage, HANDLERS)


def test_without_redis(make_stage: MakeStage) -> None:
    assert "OUTBOX_REDIS_URL is not set" in refused(make_stage(redis_url=None), HANDLERS)


def test_with_a_redis_address_that_is_none(stage: Stage) -> None:
    stage.environment["OUTBOX_REDIS_URL"] = "nonsense"
    assert "OUTBOX_REDIS_URL must be a URL that" in refused(stage, HANDLERS)


def test_with_a_wrong_setting(stage: Stage) -> None:
    stage.environment["OUTBOX_LEASE_SECONDS"] = "soon"
    assert "OUTBOX_LEASE_SECONDS must be a number" in refused(stage, HANDLERS)


def test_a_database_that_is_down_is_waited_for(stage: Stage) -> None:
    stage.environment["OUTBOX_DATABASE_URL"] = "postgresql://nobody@127.0.0.1:9/nothing"
    worker = stage.worker()
    stage.wait_for(lambda: "Could not check the tables" in worker.said(), "it says so")
    assert worker.running


class TestImportingJobs:
    """An application with its own package `jobs` may import this library's package by mistake."""

    @pytest.fixture(autouse=True)
    def _under_dramatiq(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "dramatiq.cli", types.ModuleType("dramatiq.cli"))

    def test_makes_a_dramatiq_process_no_worker_unless_it_was_started_with_it(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["dramatiq", "shop.tasks", "-p", "2"])
        assert not should_become_worker("jobs")
        assert "was not started with it (`dramatiq jobs your.module`)" in caplog.text

    @pytest.mark.parametrize("arguments", [["jobs", "shop.handlers"], ["shop.broker", "jobs", "shop.handlers"]])
    def test_is_meant_where_it_is_named(self, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", ["dramatiq", *arguments])
        assert should_become_worker("jobs")
