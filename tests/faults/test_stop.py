"""Everything is told to stop at the same moment, under load."""

import signal
from collections import Counter

from tests.support.processes import Emitter, Stage


def test_all_at_once_finish_what_they_have_begun_and_nothing_is_delivered_twice(stage: Stage) -> None:
    workers = [stage.worker(processes=2), stage.worker(processes=2)]
    scheduler = stage.scheduler()
    emitter = Emitter(stage)
    ids = stage.emit(800, do="work", seconds=0.02)
    stage.wait_for(lambda: len(set(ids).intersection(stage.began())) > 20, "the workers are busy")
    for program in (*workers, scheduler):
        program.signal(signal.SIGTERM)
    assert [program.wait() for program in (*workers, scheduler)] == [0, 0, 0]
    assert emitter.stop() == 0
    ended = stage.ended()
    assert Counter(stage.began()) == Counter(ended)
    assert not set(ids) <= set(ended)
    assert set(stage.statuses()) == {"pending", "delivered"}
    assert {attempts for attempts, status in stage.rows("attempts", "status") if status == "pending"} == {0}

    stage.worker(processes=4)
    stage.scheduler()
    stage.wait_until_all("delivered")
    assert Counter(stage.ended()) == Counter([*ids, *emitter.committed()])
    assert {attempts for (attempts,) in stage.rows("attempts")} == {1}
