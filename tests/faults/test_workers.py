"""What real workers do when they, their events, PostgreSQL or Redis come to harm: nothing is lost, and nothing is
delivered twice but after a crash or a lost lease.
"""

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
import redis

from tests.support.processes import Emitter, MakeStage, Stage, close_all
from tests.support.servers import PostgresServer, RedisServer


def assert_each_delivered_once(stage: Stage, ids: list[UUID]) -> None:
    assert stage.statuses() == {"delivered": len(ids)}
    assert Counter(stage.began()) == Counter(ids)
    assert Counter(stage.ended()) == Counter(ids)


def assert_duplicates_have_the_same_bytes(stage: Stage) -> None:
    bodies = {(entry.id, entry.body) for entry in stage.entries("began")}
    assert len(bodies) == len(set(stage.began()))


class TestTwoWorkers:
    def test_share_a_backlog_and_deliver_each_event_exactly_once(self, stage: Stage) -> None:
        for _ in range(2):
            stage.worker()
        stage.scheduler()
        ids = stage.emit(10_000)
        stage.wait_until_all("delivered")
        assert_each_delivered_once(stage, ids)
        assert len({entry.pid for entry in stage.entries("ended")}) == 2
        assert {attempts for (attempts,) in stage.rows("attempts")} == {1}


class TestAKilledWorker:
    def test_in_the_middle_of_a_batch_costs_nothing_but_a_lease(self, make_stage: MakeStage) -> None:
        stage = make_stage(lease_seconds=1)
        gate = stage.gate()
        before = stage.emit(20)
        stuck = stage.emit(1, do="wait", gate=str(gate))
        after = stage.emit(30)
        worker = stage.worker(threads=1)
        stage.wait_until_begun(*stuck)
        worker.kill()
        assert stage.statuses()["delivered"] < len(before + stuck + after)
        gate.touch()

        stage.worker(threads=1)
        stage.scheduler()
        stage.wait_until_all("delivered")
        assert set(stage.ended()) == {*before, *stuck, *after}
        twice = {id for id, times in Counter(stage.began()).items() if times > 1}
        assert twice <= {entry.id for entry in stage.entries("began") if entry.pid in worker._known}
        assert_duplicates_have_the_same_bytes(stage)

    def test_by_its_event_takes_no_attempt_from_the_others(self, make_stage: MakeStage) -> None:
        stage = make_stage(lease_seconds=1)
        others = stage.emit(500, max_attempts=3)
        (killer,) = stage.emit(1, do="abort", max_attempts=3)
        others += stage.emit(499, max_attempts=3)
        stage.scheduler()
        workers = [stage.worker(threads=4)]

        def supervised_until_all_ended() -> bool:
            if not workers[-1].running:
                workers.append(stage.worker(threads=4))
            return set(stage.statuses()) <= {"delivered", "failed"}

        stage.wait_for(supervised_until_all_ended, "every event ended")
        rows = {id: (status, attempts) for id, status, attempts in stage.rows("id", "status", "attempts")}
        assert rows.pop(killer) == ("failed", 3)
        assert rows == dict.fromkeys(others, ("delivered", 1))
        assert stage.began().count(killer) == 3
        assert killer not in stage.ended()


class TestAPausedWorker:
    def test_finds_its_lease_lost_and_its_word_counts_for_nothing(self, make_stage: MakeStage) -> None:
        stage = make_stage(lease_seconds=1)
        gate = stage.gate()
        (event,) = stage.emit(1, do="wait", gate=str(gate))
        paused = stage.worker(threads=1)
        stage.wait_until_begun(event)
        paused.pause()
        gate.touch()

        stage.worker(threads=1)
        stage.scheduler()
        stage.wait_until_all("delivered")
        row = stage.rows("status", "attempts", "delivered_at", "updated_at", "lease_id")

        gate.with_name(gate.name + ".bad").touch()  # its attempt fails, while the other's has succeeded
        paused.resume()
        stage.wait_for(lambda: "fenced: 1 of 1" in paused.said(), "the late worker is fenced")
        assert stage.rows("status", "attempts", "delivered_at", "updated_at", "lease_id") == row
        assert stage.began() == [event, event]
        assert stage.ended() == [event]
        assert_duplicates_have_the_same_bytes(stage)


class TestALongHandler:
    def test_keeps_its_lease_and_succeeds_once(self, make_stage: MakeStage) -> None:
        stage = make_stage(lease_seconds=2)
        gate = stage.gate()
        (event,) = stage.emit(1, do="wait", gate=str(gate))
        for _ in range(2):
            stage.worker(threads=1)
        stage.scheduler()
        stage.wait_until_begun(event)
        ((first, lease),) = stage.rows("lease_until", "lease_id")

        def is_renewed() -> bool:
            ((until,),) = stage.rows("lease_until")
            return until is not None and (until - first).total_seconds() > 2 * stage.settings.lease_seconds

        stage.wait_for(is_renewed, "the lease outlives itself twice")
        assert stage.rows("lease_id", "status") == [(lease, "sending")]
        gate.touch()
        stage.wait_until_all("delivered")
        assert_each_delivered_once(stage, [event])
        assert stage.rows("attempts") == [(1,)]

    def test_that_hangs_is_interrupted_while_others_go_on(self, make_stage: MakeStage) -> None:
        stage = make_stage(lease_seconds=0.5, max_run_seconds=1)
        (hanging,) = stage.emit(1, do="hang", max_attempts=1)
        worker = stage.worker()
        stage.scheduler()
        stage.wait_until_begun(hanging)
        others = stage.emit(100)
        stage.wait_until_all("delivered", "failed")
        assert stage.statuses() == {"delivered": len(others), "failed": 1}
        stage.wait_for(lambda: "Overdue" in worker.said(), "the call is interrupted")
        more = stage.emit(100)
        stage.wait_until_all("delivered", "failed")
        assert Counter(stage.ended()) == Counter(others + more)
        assert stage.began().count(hanging) == 1


class TestALateCommit:
    def test_with_an_earlier_id_is_delivered(self, stage: Stage) -> None:
        stage.worker()
        stage.scheduler()
        late = stage.make_box()
        with late.dialect.connection(), late.database.atomic():
            earlier = late.emit("Thing", "late", "test.emitted", {"do": "pass"}).id
            (later,) = stage.emit()
            stage.wait_until_all("delivered")
            assert stage.ended() == [later]
        stage.wait_for(lambda: stage.statuses() == {"delivered": 2}, "the late one is delivered")
        assert earlier < later
        assert stage.ended() == [later, earlier]
        close_all(late)


class TestSigterm:
    def test_under_load_finishes_what_has_begun_and_gives_back_the_rest(self, stage: Stage) -> None:
        ids = stage.emit(1_500, do="work", seconds=0.005)
        worker = stage.worker(processes=2)
        stage.wait_for(lambda: len(stage.began()) > 200, "the workers are busy")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0

        ended = stage.ended()
        assert Counter(stage.began()) == Counter(ended)
        assert len(ended) < len(ids)
        for id, status, attempts, lease in stage.rows("id", "status", "attempts", "lease_id"):
            assert (status, attempts, lease) == (("delivered", 1, None) if id in ended else ("pending", 0, None))

        stage.worker(processes=2)
        stage.wait_until_all("delivered")
        assert_each_delivered_once(stage, ids)


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


class TestPostgresRestarted:
    @pytest.mark.parametrize("immediate", [False, True], ids=["fast", "immediate"])
    def test_again_and_again_under_load_loses_nothing_and_workers_recover_by_themselves(
        self, make_stage: MakeStage, own_postgres: PostgresServer, *, immediate: bool
    ) -> None:
        stage = make_stage(database_url=own_postgres.create_database("restarted"), lease_seconds=3)
        workers = [stage.worker(), stage.worker()]
        stage.scheduler()
        emitter = Emitter(stage)
        stage.wait_for(lambda: len(stage.ended()) > 30, "events are delivered")
        for _ in range(3):
            own_postgres.restart(immediate=immediate)
            stage.reconnect()
            emitter.wait_for_more(20)
        assert emitter.stop() == 0

        stage.wait_until_all("delivered")
        assert set(emitter.committed()) <= set(stage.ended())
        assert {id for (id,) in stage.rows("id")} == set(stage.ended())
        assert_duplicates_have_the_same_bytes(stage)
        assert all(worker.running for worker in workers)
        assert_still_delivering(stage)


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def flush(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()


class TestRedis:
    @pytest.mark.parametrize(
        ("break_it", "mend_it"),
        [
            (RedisServer.kill, RedisServer.start),
            (RedisServer.stop, RedisServer.start),
            (RedisServer.pause, RedisServer.resume),
            (flush, flush),
        ],
        ids=["killed", "restarted", "paused", "flushed"],
    )
    def test_harmed_disturbs_no_emitter_and_all_is_delivered_in_the_end(
        self,
        make_stage: MakeStage,
        own_redis: RedisServer,
        break_it: Callable[[RedisServer], None],
        mend_it: Callable[[RedisServer], None],
    ) -> None:
        stage = make_stage(redis_url=own_redis.url)
        worker = stage.worker()
        stage.scheduler()
        emitter = Emitter(stage)
        stage.wait_for(lambda: len(stage.ended()) > 30, "events are delivered")
        break_it(own_redis)
        emitter.wait_for_more(60)
        mend_it(own_redis)
        emitter.wait_for_more(30)
        assert emitter.stop() == 0
        stage.wait_until_all("delivered")
        assert_each_delivered_once(stage, emitter.committed())
        assert worker.running
        assert_still_delivering(stage)


def assert_still_delivering(stage: Stage) -> None:
    more = stage.emit(10)
    stage.wait_until_all("delivered")
    assert set(more) <= set(stage.ended())


def test_a_worker_that_was_away_finds_what_is_due_when_it_starts(make_stage: MakeStage) -> None:
    stage = make_stage(sweep_seconds=3600)
    ids = stage.emit(10)
    worker = stage.worker()
    stage.wait_until_all("delivered")
    assert_each_delivered_once(stage, ids)
    assert worker.running
