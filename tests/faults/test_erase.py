"""Erasing with real processes: killed in the middle, two at once, beside a worker that delivers what is erased."""

from outbox.operations.erase import preview
from outbox.operations.filters import Filter
from outbox.storage.models import DELIVERED
from outbox.telemetry import audit
from tests.support.encryption import dump
from tests.support.processes import BIN, MakeStage, Program, Stage

SECRET = "alice@example.com"
NUMBER = 1_500
ALICE_S = Filter(subject="user:7")


def emit_secrets(stage: Stage, number: int, *, ended: bool = True) -> None:
    with stage.box.dialect.connection():
        stage.box.emit_many(
            {
                "aggregate_type": "Thing",
                "aggregate_id": n,
                "event_type": "test.emitted",
                "payload": {"do": "pass", "mail": SECRET},
                "subject": "user:7",
            }
            for n in range(number)
        )
        if ended:
            stage.box.dialect.run(
                "UPDATE outbox_event SET status = 'delivered', next_attempt_at = NULL, delivered_at = created_at"
            )


def erased(stage: Stage) -> int:
    return sum(at is not None for (at,) in stage.rows("erased_at"))


def start(stage: Stage, *options: str) -> Program:
    return stage.start("erase", BIN / "outbox", "erase", "--subject", "user:7", "--yes", *options)


def test_one_that_is_killed_is_run_again_and_beside_another(make_stage: MakeStage, url: str) -> None:
    stage = make_stage(database_url=url)
    emit_secrets(stage, NUMBER)
    killed = start(stage, "--per-second", "500")
    stage.wait_for(lambda: erased(stage) >= 500, "it has erased some")
    killed.kill()
    (entry,) = audit.latest(stage.box.dialect)
    assert (entry.action, entry.affected, entry.outcome) == ("erase", erased(stage), None)
    assert erased(stage) < NUMBER

    both = [start(stage) for _ in range(2)]
    codes = [program.wait() for program in both]
    # The second may find rows that the first has locked, or nothing at all.
    assert 0 in codes, [program.said() for program in both]
    assert erased(stage) == NUMBER
    assert sum(each.affected for each in audit.latest(stage.box.dialect)) == NUMBER
    assert SECRET not in dump(stage.box)
    assert "user:7" not in dump(stage.box)


def test_beside_a_worker_everything_is_delivered_whole_and_then_erased(make_stage: MakeStage, url: str) -> None:
    stage = make_stage(database_url=url)
    emit_secrets(stage, 300, ended=False)
    stage.scheduler()
    stage.worker()
    done = start(stage, "--pending", "deliver", "--wait", "60s")
    assert done.wait() == 0, done.said()
    assert set(stage.statuses()) == {DELIVERED}
    assert len(set(stage.ended())) == 300
    # None was delivered with the content of an erased row.
    assert len({entry.body for entry in stage.entries("ended")}) == 1
    assert preview(stage.box.dialect, ALICE_S).ended == 0
    assert SECRET not in dump(stage.box)
