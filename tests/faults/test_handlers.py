"""A handler that does what it should not, among a thousand events of which nothing is wrong with the others."""

from collections import Counter
from typing import Any

import pytest

from tests.support.processes import BIN, HANDLERS, MakeStage, Stage


@pytest.mark.parametrize(
    ("poison", "error"),
    [
        ({"do": "fail", "times": 100}, "ValueError: attempt 2 fails"),
        ({"do": "raise", "what": "KeyboardInterrupt"}, "KeyboardInterrupt: on purpose"),
        ({"do": "raise", "what": "BaseException"}, "BaseException: on purpose"),
        ({"do": "raise", "what": "SystemExit"}, "SystemExit: on purpose"),
        ({"do": "raise", "what": "MemoryError"}, "MemoryError: on purpose"),
        ({"do": "forget"}, "a transaction was left open; it was rolled back"),
    ],
    ids=["raises", "interrupts", "raises BaseException", "exits", "runs out of memory", "forgets its transaction"],
)
def test_one_poisoned_event_fails_alone_and_costs_the_others_nothing(
    stage: Stage, poison: dict[str, Any], error: str
) -> None:
    others = stage.emit(500, max_attempts=2)
    (poisoned,) = stage.emit(1, max_attempts=2, **poison)
    others += stage.emit(499, max_attempts=2)
    worker = stage.worker()
    stage.scheduler()
    stage.wait_until_all("delivered", "failed")
    rows = {id: tuple(rest) for id, *rest in stage.rows("id", "status", "attempts", "error_message")}
    assert rows.pop(poisoned) == ("failed", 2, f"ledger: {error}")
    assert rows == dict.fromkeys(others, ("delivered", 1, None))
    assert stage.began().count(poisoned) == 2
    assert Counter(id for id in stage.began() if id != poisoned) == Counter(others)
    assert worker.running


def test_a_handler_that_leaks_until_nothing_is_left_fails_visibly_and_loses_nothing(make_stage: MakeStage) -> None:
    """Its process has run out of files: what it can't do it says, and the others of the fleet go on."""
    stage = make_stage(lease_seconds=2)
    few_files = 'ulimit -n 150; exec "$@"'
    leaky = stage.start(
        "leaky", "/bin/sh", "-c", few_files, "sh", BIN / "dramatiq", "jobs", HANDLERS, "-p", "1", "-t", "2",
        ready="ready for action",
    )  # fmt: skip
    stage.scheduler()
    leaks = stage.emit(300, max_attempts=2, do="leak")
    stage.wait_until_all("delivered", "failed")
    errors = {error for status, error in stage.rows("status", "error_message") if status == "failed"}
    assert errors == {"ledger: OSError: [Errno 24] Too many open files: '/dev/null'"}
    leaky.kill()
    stage.worker()
    healthy = stage.emit(20)
    with stage.box.dialect.connection():
        assert stage.box.retry_failed_events() > 0
    stage.wait_until_all("delivered")
    assert set(stage.ended()) == {*leaks, *healthy}
