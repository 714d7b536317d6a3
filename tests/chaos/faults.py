"""What happens to the world: each fault is a context, in which it holds; it counts what it has hit.

Faults wait for conditions, never for a time: a kill for a worker with events in its hands, an outage for enough events
that pass by.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from outbox import crash_points
from tests.chaos import receiver
from tests.chaos.destinations import ARCHIVE, HANDLER, QUEUE, STREAM, WEBHOOK
from tests.chaos.proxy import AFTER, BEFORE

if TYPE_CHECKING:
    from tests.chaos.world import World

Hits = Counter[str]

# How many events have to pass during an outage of something else, for that to be no hindrance.
ENOUGH = 10

KILLED, PAUSED = "a worker is killed in mid-batch", "a worker is paused past its lease"
CRASHED = {point: f"a worker dies {point.replace('-', ' ')}" for point in crash_points.POINTS}
ARCHIVER_AWAY = "the only worker that has the archive is away"
DEATHS = (KILLED, ARCHIVER_AWAY, *CRASHED.values())

POSTGRES_RESTARTED = "PostgreSQL is stopped at once and started"
CONNECTIONS_ENDED = "PostgreSQL ends all connections, again and again"
DATABASE = (POSTGRES_RESTARTED, CONNECTIONS_ENDED)
TABLE_LOCKED = "somebody locks the table"
COMMIT_CUT_BEFORE, COMMIT_CUT_AFTER = "commits are cut before they arrive", "commits are cut after they are done"
CUTS = (COMMIT_CUT_BEFORE, COMMIT_CUT_AFTER)

REDIS_KILLED, REDIS_PAUSED, REDIS_FLUSHED = "Redis is killed", "Redis hangs", "Redis is flushed"
REDIS = (REDIS_KILLED, REDIS_PAUSED, REDIS_FLUSHED)
REDIS_AWAY = (REDIS_KILLED, REDIS_PAUSED)

SCHEDULER_KILLED, SCHEDULER_PAUSED = "the scheduler is killed", "the scheduler is paused"
TWO_SCHEDULERS = "there are two schedulers"
EMITTER_KILLED = "an emitter is killed"

RECEIVER_KILLED, RECEIVER_HANGS = "the webhook's receiver is killed", "the webhook's receiver hangs"
RECEIVER_REFUSES, RECEIVER_TALKS_NONSENSE = "the webhook's receiver refuses", "the webhook's receiver talks nonsense"
ANSWERS_LOST = "the webhook's answers are lost"
BUS_PAUSED = "the stream's Redis hangs"
RABBITMQ_KILLED, RABBITMQ_PAUSED = "RabbitMQ is killed", "RabbitMQ hangs"
# Who is away meanwhile, and must not be waited for.
AWAY = {
    RECEIVER_KILLED: WEBHOOK,
    RECEIVER_HANGS: WEBHOOK,
    RECEIVER_REFUSES: WEBHOOK,
    BUS_PAUSED: STREAM,
    RABBITMQ_KILLED: QUEUE,
    RABBITMQ_PAUSED: QUEUE,
}

# What each has to hit, to have been one.
MUST_HIT = {
    KILLED: ("events in its hands",),
    ARCHIVER_AWAY: ("events that wait for it",),
    PAUSED: ("outcomes fenced",),
    **dict.fromkeys(CRASHED.values(), ("workers dead",)),
    CONNECTIONS_ENDED: ("connections ended",),
    TABLE_LOCKED: ("waiting for the lock",),
    COMMIT_CUT_BEFORE: ("commits cut",),
    COMMIT_CUT_AFTER: ("commits cut",),
    ANSWERS_LOST: ("answers lost",),
    RECEIVER_REFUSES: ("events put off",),
    RECEIVER_HANGS: ("events in the air",),
    RECEIVER_KILLED: ("events put off",),
    RECEIVER_TALKS_NONSENSE: ("events put off",),
    RABBITMQ_KILLED: ("events put off",),
    RABBITMQ_PAUSED: ("events in the air",),
}


@contextmanager
def kill_worker(world: World, hits: Hits) -> Iterator[None]:
    worker, held = world.pause_a_busy_worker()
    hits["events in its hands"] = held
    world.replace_worker(worker)
    yield


@contextmanager
def take_archiver_away(world: World, hits: Hits) -> Iterator[None]:
    """The others have to leave to it what they lack, and to go on with everything else."""
    begun = time.time()
    world.stop_archiver()
    world.wait_until_others_pass(begun, HANDLER, STREAM)
    hits["events that wait for it"] = world.wait_for_waiting(ARCHIVE)
    yield
    world.start_archiver()


@contextmanager
def pause_worker(world: World, hits: Hits) -> Iterator[None]:
    """It holds an event that another delivers meanwhile; then it says that it is done with it."""
    gate, hostage = world.emit_hostage()
    worker = world.worker_that_began(hostage)
    fenced = world.fenced_by(worker)
    worker.program.pause()
    gate.touch()
    world.wait_for(lambda: hostage in world.accepted(HANDLER), "another worker delivers what a paused one held")
    worker.program.resume()
    world.wait_for(lambda: world.fenced_by(worker) > fenced, "the paused worker is fenced")
    hits["outcomes fenced"] = world.fenced_by(worker) - fenced
    yield


def die_at(point: str) -> Callable[[World, Hits], AbstractContextManager[None]]:
    @contextmanager
    def die(world: World, hits: Hits) -> Iterator[None]:
        worker = world.choose_worker()
        (worker.crash_points / point).touch()
        world.wait_for(lambda: any(worker.crash_points.glob(f"{point}.*")), f"a worker dies {point}")
        hits["workers dead"] = 1
        world.replace_worker(worker)
        yield

    return die


@contextmanager
def restart_postgres(world: World, hits: Hits) -> Iterator[None]:
    world.postgres.stop(immediate=True)
    yield
    world.postgres.start()


@contextmanager
def end_connections(world: World, hits: Hits) -> Iterator[None]:
    end = """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"""
    for _ in range(3):
        hits["connections ended"] += world.ask(end)[0][0]
        world.wait_for_commits(5)
    yield


@contextmanager
def lock_table(world: World, hits: Hits) -> Iterator[None]:
    waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'outbox_event'::regclass AND NOT granted"
    with world.connect() as connection:
        connection.execute("LOCK TABLE outbox_event IN ACCESS EXCLUSIVE MODE")
        world.wait_for(lambda: world.ask(waiting)[0][0] > 1, "somebody waits for the lock")
        hits["waiting for the lock"] = world.ask(waiting)[0][0]
    yield


def cut_commits(how: str) -> Callable[[World, Hits], AbstractContextManager[None]]:
    @contextmanager
    def cut(world: World, hits: Hits) -> Iterator[None]:
        before = world.proxy.cuts
        world.proxy.cut(how, times=5)
        world.wait_for(lambda: world.proxy.cuts >= before + 5, "commits are cut")
        hits["commits cut"] = world.proxy.cuts - before
        world.wait_for_commits(1)
        yield

    return cut


@contextmanager
def kill_redis(world: World, hits: Hits) -> Iterator[None]:
    begun = time.time()
    world.redis.kill()
    world.wait_for_commits()
    world.wait_until_others_pass(begun, HANDLER, STREAM)  # workers look for due events by themselves
    yield
    world.redis.start()


@contextmanager
def pause_redis(world: World, hits: Hits) -> Iterator[None]:
    begun = time.time()
    world.redis.pause()
    world.wait_for_commits()
    world.wait_until_others_pass(begun, HANDLER, STREAM)
    yield
    world.redis.resume()


@contextmanager
def flush_redis(world: World, hits: Hits) -> Iterator[None]:
    world.flush_redis()
    world.wait_for_commits()
    yield


@contextmanager
def kill_scheduler(world: World, hits: Hits) -> Iterator[None]:
    world.scheduler.kill()
    world.wait_for_commits()
    yield
    world.start_scheduler()


@contextmanager
def pause_scheduler(world: World, hits: Hits) -> Iterator[None]:
    world.freeze(world.scheduler)
    world.wait_for_commits()
    yield
    world.thaw(world.scheduler)


@contextmanager
def run_two_schedulers(world: World, hits: Hits) -> Iterator[None]:
    first = world.scheduler
    world.start_scheduler()
    world.wait_for_commits()
    yield
    first.kill()


@contextmanager
def kill_emitter(world: World, hits: Hits) -> Iterator[None]:
    world.replace_emitter()
    yield


@contextmanager
def kill_receiver(world: World, hits: Hits) -> Iterator[None]:
    begun = time.time()
    world.receiver.kill()
    world.wait_until_others_pass(begun, HANDLER, STREAM)
    hits["events put off"] = world.wait_for_unfinished(WEBHOOK)
    yield
    world.start_receiver()


def let_receiver(mode: str, what: str, *others: str) -> Callable[[World, Hits], AbstractContextManager[None]]:
    @contextmanager
    def let(world: World, hits: Hits) -> Iterator[None]:
        begun = time.time()
        world.mode.write_text(mode)
        world.wait_until_others_pass(begun, *others)
        hits[what] = world.wait_for_unfinished(WEBHOOK)
        yield
        world.mode.write_text(receiver.ACCEPT)

    return let


@contextmanager
def lose_answers(world: World, hits: Hits) -> Iterator[None]:
    before = world.lost_answers()
    world.mode.write_text(receiver.LOSE)
    world.wait_for(lambda: world.lost_answers() >= before + 3, "answers are lost")
    hits["answers lost"] = world.lost_answers() - before
    yield
    world.mode.write_text(receiver.ACCEPT)


@contextmanager
def pause_bus(world: World, hits: Hits) -> Iterator[None]:
    begun = time.time()
    world.bus.pause()
    world.wait_until_others_pass(begun, HANDLER)
    yield
    world.bus.resume()


@contextmanager
def kill_rabbitmq(world: World, hits: Hits) -> Iterator[None]:
    begun = time.time()
    world.rabbitmq.kill()
    world.wait_until_others_pass(begun, HANDLER, STREAM)
    hits["events put off"] = world.wait_for_unfinished(QUEUE)
    yield
    world.rabbitmq.start()


@contextmanager
def pause_rabbitmq(world: World, hits: Hits) -> Iterator[None]:
    begun = time.time()
    world.rabbitmq.pause()
    world.wait_until_others_pass(begun, HANDLER, STREAM)
    hits["events in the air"] = world.wait_for_unfinished(QUEUE)
    yield
    world.rabbitmq.resume()


FAULTS: dict[str, Callable[[World, Hits], AbstractContextManager[None]]] = {
    KILLED: kill_worker,
    ARCHIVER_AWAY: take_archiver_away,
    PAUSED: pause_worker,
    **{what: die_at(point) for point, what in CRASHED.items()},
    POSTGRES_RESTARTED: restart_postgres,
    CONNECTIONS_ENDED: end_connections,
    TABLE_LOCKED: lock_table,
    COMMIT_CUT_BEFORE: cut_commits(BEFORE),
    COMMIT_CUT_AFTER: cut_commits(AFTER),
    REDIS_KILLED: kill_redis,
    REDIS_PAUSED: pause_redis,
    REDIS_FLUSHED: flush_redis,
    SCHEDULER_KILLED: kill_scheduler,
    SCHEDULER_PAUSED: pause_scheduler,
    TWO_SCHEDULERS: run_two_schedulers,
    EMITTER_KILLED: kill_emitter,
    RECEIVER_KILLED: kill_receiver,
    RECEIVER_HANGS: let_receiver(receiver.HANG, "events in the air", HANDLER, STREAM),
    RECEIVER_REFUSES: let_receiver(receiver.REFUSE, "events put off", HANDLER, STREAM),
    RECEIVER_TALKS_NONSENSE: let_receiver(receiver.GARBAGE, "events put off"),
    ANSWERS_LOST: lose_answers,
    BUS_PAUSED: pause_bus,
}
# Only in a run with RabbitMQ, which a bare machine lacks.
RABBITMQ_FAULTS: dict[str, Callable[[World, Hits], AbstractContextManager[None]]] = {
    RABBITMQ_KILLED: kill_rabbitmq,
    RABBITMQ_PAUSED: pause_rabbitmq,
}
