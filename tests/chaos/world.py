"""Everything that runs: servers, workers, a scheduler, emitters, a receiver; how it is started again, and looked at."""

import contextlib
import functools
import io
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pika
import psycopg
import redis

from outbox import crash_points
from tests.chaos import destinations, receiver
from tests.chaos.account import Account, Delivery, Error, Fault, Row, Trespass, transactions
from tests.chaos.destinations import (
    ACTOR,
    ARCHIVE,
    HANDLED,
    HANDLER,
    QUEUE,
    QUEUE_NAME,
    STREAM,
    STREAM_KEY,
    WEBHOOK,
    types_for,
)
from tests.chaos.emitter import ATTEMPTS, COMMITTED, emit
from tests.chaos.faults import ENOUGH, FAULTS, RABBITMQ_FAULTS, Hits
from tests.chaos.ledger import Ledger, Reader, digest
from tests.chaos.proxy import Proxy
from tests.chaos.schedule import Step
from tests.rabbitmq.server import RabbitmqServer
from tests.support.processes import BIN, Program, Stage
from tests.support.servers import PostgresServer, RedisServer, free_port, send, wait_until

PATIENCE_SECONDS = 120.0
SETTINGS: dict[str, Any] = {"lease_seconds": 3, "backoff_cap_seconds": 1, "max_attempts": ATTEMPTS}
WORKERS, EMITTERS = 3, 2

PUBLISHED_IDS = "SELECT id::text FROM outbox_event WHERE event_type = 'chaos.published' AND status = 'delivered'"
ENQUEUED = "SELECT aggregate_id FROM outbox_event WHERE kind = 'job' AND status = 'delivered'"
# A job is known by its message, and by its arguments.
ROWS = """SELECT CASE kind WHEN 'job' THEN aggregate_id ELSE id::text END, status,
        CASE kind WHEN 'job' THEN (payload -> 'args')::text ELSE payload::text END, error_message
    FROM outbox_event WHERE kind IN ('event', 'job')"""
UNFINISHED = "SELECT count(*) FROM outbox_event WHERE next_attempt_at IS NOT NULL"
UNFINISHED_EVENTS = UNFINISHED + " AND kind IN ('event', 'job')"
# Being sent, or tried before: not just waiting for its first turn.
UNDER_WAY = UNFINISHED + " AND event_type = ANY (%s) AND (status = 'sending' OR progress IS NOT NULL)"
HELD = """SELECT count(*) FROM outbox_event AS event WHERE status = 'sending' AND %s =
    (SELECT who FROM chaos_change WHERE event = event.id AND lease = event.lease_id ORDER BY at LIMIT 1)"""
CHANGES = """SELECT event::text, extract(epoch FROM at)::float8, format(
        '%s by %s, attempts %s, lease %s until %s, next attempt at %s %s',
        status, who, attempts, lease, lease_until, next_attempt_at, error)
    FROM chaos_change ORDER BY at"""
FENCED = re.compile(r"fenced: (\d+) of")


class Stuck(Exception):
    """Something that was to come true has not."""


@dataclass(frozen=True, slots=True)
class Worker:
    name: str
    program: Program
    crash_points: Path
    has_archive: bool = False

    @property
    def ready(self) -> bool:
        return "ready for action" in self.program.said()


class World:
    """`with World(folder, seed) as world: world.go_through(steps)`, and then `world.come_to_rest()`."""

    # Only in a run with RabbitMQ.
    rabbitmq: RabbitmqServer

    def __init__(
        self, folder: Path, seed: int, *, breaker: bool = False, with_rabbitmq: bool = False, archivers: int = 1
    ) -> None:
        self._folder = folder
        self._chance = random.Random(seed)  # noqa: S311 - nothing secret
        self._breaker, self._with_rabbitmq, self._archivers = breaker, with_rabbitmq, archivers
        self._stack = contextlib.ExitStack()
        self._numbers: Counter[str] = Counter()
        self._handled = Reader(folder / "handled")
        self._received = Reader(folder / "received")
        self._archived = Reader(folder / "archived")
        self._ran = Reader(folder / "ran")
        self._queued = Reader(folder / "queued")
        self._emitted = Reader(folder / "emitted")
        self._errors = Reader(folder / "errors")
        self._streamed: list[Delivery] = []
        self._stream_position = "-"
        self.faults: list[Fault] = []
        self.steps: list[Step] = []
        self.now_going_on: list[str] = []
        self.workers: list[Worker] = []
        self.emitters: list[Program] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.postgres = stack.enter_context(PostgresServer())
            self.redis = stack.enter_context(RedisServer())
            self.bus = stack.enter_context(RedisServer())
            self.proxy = stack.enter_context(Proxy(self.postgres.port))
            if self._with_rabbitmq:
                self.rabbitmq = stack.enter_context(RabbitmqServer())
            self._url = self.postgres.create_database("chaos")
            # Programs' logs are in the folder; a stage would print them all.
            self.stage = stack.enter_context(
                Stage(self._folder, database_url=self._url, redis_url=self.redis.url, **SETTINGS)
            )
            self._start_everything()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._stack.close()

    def _start_everything(self) -> None:
        with self.connect() as connection:
            connection.execute((Path(__file__).parent / "watch.sql").read_text())
        self._receiver_port = free_port()
        self.mode = self._folder / "mode"
        self.mode.write_text(receiver.ACCEPT)
        self.stage.environment |= {
            destinations.LEDGER: str(self._folder / "handled"),
            destinations.ARCHIVE_LEDGER: str(self._folder / "archived"),
            destinations.JOB_LEDGER: str(self._folder / "ran"),
            destinations.HOOK: f"http://127.0.0.1:{self._receiver_port}/hook",
            destinations.BUS: self.bus.url,
            destinations.BREAKER: "on" if self._breaker else "",
        }
        self._hostages = Ledger(self._folder / "emitted")
        self.start_receiver()
        if self._with_rabbitmq:
            self._start_queue_reader()
        self.start_scheduler()
        for number in range(WORKERS):
            self._start_worker(has_archive=number < self._archivers)
        self.wait_for(lambda: all(worker.ready for worker in self.workers), "the workers are ready")
        self.job_worker = self._start(
            "job-worker", BIN / "dramatiq", "tests.chaos.jobs:broker", *("-p", "1", "-t", "2")
        )
        for _ in range(EMITTERS):
            self._start_emitter()
        self.wait_for(lambda: len(self.accepted(HANDLER)) >= ENOUGH, "events are delivered")
        self.wait_for(lambda: len(self.accepted(ARCHIVE)) > 0, "an event is archived")
        self.wait_for(lambda: len(self.accepted(ACTOR)) > 0, "a job has run")

    # What happens

    def go_through(self, steps: Iterator[Step], until: float | None = None) -> None:
        """One fault after another, until the time is up."""
        for step in steps:
            if until is not None and time.monotonic() >= until:
                break
            self.steps.append(step)
            self._inject(step.fault, step.inside)
            # As the clean-up does: that a time is run once must not depend on the row of its run.
            self.ask("DELETE FROM outbox_event WHERE kind = 'run' AND next_attempt_at IS NULL RETURNING id")
            time.sleep(step.rest_seconds)

    def _inject(self, what: str, inside: str | None = None) -> None:
        begun_at = time.time()
        hits = Hits()
        self.now_going_on.append(what)
        try:
            with (FAULTS | RABBITMQ_FAULTS)[what](self, hits):
                if inside is not None:
                    self._inject(inside)
            self.now_going_on.remove(what)
        finally:
            self.faults.append(Fault(what, begun_at, time.time(), hits))

    def come_to_rest(self) -> Account:
        """No more faults, no more events: all that is left comes to its end. Then everything stops, in good order."""
        self.now_going_on.append("nothing: all that is left comes to its end")
        (self._folder / "stop").touch()
        for emitter in self.emitters:
            emitter.wait()
        with contextlib.suppress(Stuck):  # whatever has not ended, the checker tells about
            self.wait_for(lambda: self.ask(UNFINISHED_EVENTS)[0][0] == 0, "every event ends", 2 * PATIENCE_SECONDS)
            enqueued = {id for (id,) in self.ask(ENQUEUED)}
            self.wait_for(lambda: enqueued <= set(self.accepted(ACTOR)), "every job has run")
            published = {id for (id,) in self.ask(PUBLISHED_IDS)}
            self.wait_for(lambda: published <= set(self.accepted(QUEUE)), "the queue is read")
        self._stop(self.scheduler)  # it stores a run every second
        with contextlib.suppress(Stuck):
            self.wait_for(lambda: self.ask(UNFINISHED)[0][0] == 0, "every run ends")
        self._stop(self.job_worker, *(worker.program for worker in self.workers))
        return self.account()

    @staticmethod
    def _stop(*programs: Program) -> None:
        for program in programs:
            program.signal(signal.SIGTERM)
        for program in programs:
            program.wait()

    def halt(self) -> Account:
        """Everything ends at once: what there is of an account, when it does not go on."""
        for program in self.stage.programs:
            program.kill()
        self.bus.resume()
        if self._with_rabbitmq:
            self.rabbitmq.resume()
        if not self.postgres.answers():
            self.postgres.stop(immediate=True)
            self.postgres.start()
        return self.account()

    # Programs

    def _start(self, name: str, *command: str | Path, **environment: str) -> Program:
        """With its own additions to the environment."""
        before = dict(self.stage.environment)
        self.stage.environment |= environment
        try:
            return self.stage.start(name, *command)
        finally:
            self.stage.environment = before

    def _name(self, kind: str) -> str:
        self._numbers[kind] += 1
        return f"{kind}-{self._numbers[kind]}"

    def _start_worker(self, *, has_archive: bool = False) -> None:
        name = self._name("worker")
        crash_folder = self._folder / f"{name}-crash"
        crash_folder.mkdir()
        program = self._start(
            name,
            *(BIN / "dramatiq", "jobs", "tests.chaos.app"),
            *(("tests.chaos.archive",) if has_archive else ()),
            *("-p", "1", "-t", "2"),
            OUTBOX_DATABASE_URL=f"{self._url}?application_name={name}",
            **{crash_points.VARIABLE: str(crash_folder)},
        )
        self.workers.append(Worker(name, program, crash_folder, has_archive))

    def replace_worker(self, worker: Worker) -> None:
        worker.program.kill()
        self.workers.remove(worker)
        self._start_worker(has_archive=worker.has_archive)

    def stop_archiver(self) -> None:
        """Kill the only worker that has the archive."""
        worker = next(worker for worker in self.workers if worker.has_archive)
        worker.program.kill()
        self.workers.remove(worker)

    def start_archiver(self) -> None:
        self._start_worker(has_archive=True)

    def choose_worker(self) -> Worker:
        """Any that is up."""
        self.wait_for(lambda: any(worker.ready for worker in self.workers), "a worker is ready")
        return self._chance.choice([worker for worker in self.workers if worker.ready])

    def pause_a_busy_worker(self) -> tuple[Worker, int]:
        """One that has events in its hands, and how many."""
        worker = self.choose_worker()

        def is_busy() -> bool:
            worker.program.pause()
            if self._held_by(worker):
                return True
            worker.program.resume()
            return False

        self.wait_for(is_busy, f"{worker.name} has events in its hands")
        return worker, self._held_by(worker)

    def _held_by(self, worker: Worker) -> int:
        return int(self.ask(HELD, worker.name)[0][0])

    def worker_that_began(self, id: str) -> Worker:
        """Whose handler is busy with an event."""
        self.wait_for(lambda: id in self._begun(), "a handler begins")
        pid = self._begun()[id]
        return next(worker for worker in self.workers if pid in worker.program.family())

    def _begun(self) -> dict[str, int]:
        return {line["id"]: line["pid"] for line in self._handled.lines() if line["what"] == "began"}

    @staticmethod
    def fenced_by(worker: Worker) -> int:
        return sum(map(int, FENCED.findall(worker.program.said())))

    def start_scheduler(self) -> None:
        self.scheduler = self._start("scheduler", sys.executable, "-m", "scheduler", "tests.chaos.app")

    @staticmethod
    def freeze(program: Program) -> None:
        send(signal.SIGSTOP, program.family())

    @staticmethod
    def thaw(program: Program) -> None:
        send(signal.SIGCONT, program.family())

    def _start_emitter(self) -> None:
        name = self._name("emitter")
        url = self._url.replace(f":{self.postgres.port}/", f":{self.proxy.port}/")
        program = self._start(
            name,
            *(sys.executable, "-m", "tests.chaos.emitter", name, str(self._chance.random())),
            *(self._folder / "stop", self._folder / "emitted"),
            OUTBOX_DATABASE_URL=f"{url}?application_name={name}",
        )
        self.emitters.append(program)

    def replace_emitter(self) -> None:
        emitter = self._chance.choice(self.emitters)
        emitter.kill()
        self.emitters.remove(emitter)
        self._start_emitter()
        self.wait_for_commits()

    def start_receiver(self) -> None:
        command = (sys.executable, "-m", "tests.chaos.receiver", str(self._receiver_port))
        self.receiver = self._start("receiver", *command, self._folder / "received", self.mode)

    def _start_queue_reader(self) -> None:
        with pika.BlockingConnection(pika.URLParameters(self.rabbitmq.url)) as connection:
            connection.channel().queue_declare(QUEUE_NAME, durable=True)
        self.stage.environment[destinations.RABBITMQ] = self.rabbitmq.url
        command = (sys.executable, "-m", "tests.chaos.queue_reader", self.rabbitmq.url, QUEUE_NAME)
        self._start("queue-reader", *command, self._folder / "queued")

    def flush_redis(self) -> None:
        with redis.Redis.from_url(self.redis.url) as client:
            client.flushall()

    # Events

    def emit_hostage(self) -> tuple[Path, str]:
        """An event whose handler waits for a file; the file, and the event's id."""
        gate = self.stage.gate()
        name = self._name("hostage")
        self.stage.reconnect()
        box = self.stage.box
        with box.dialect.connection(), box.database.atomic():
            box.database.execute_sql("INSERT INTO chaos_note (transaction) VALUES (%s)", (name,))
            event = emit(box, HANDLED, {"do": "wait", "gate": str(gate)})
            self._hostages.write("intended", transaction=name, events=[event])
        self._hostages.write("ended", transaction=name, fate=COMMITTED)
        return gate, event["id"]

    def commits(self) -> int:
        return sum(line["what"] == "ended" and line["fate"] == COMMITTED for line in self._emitted.lines())

    def wait_for_commits(self, number: int = ENOUGH) -> None:
        """So many more."""
        before = self.commits()
        self.wait_for(lambda: self.commits() >= before + number, f"{number} more commits")

    def accepted(self, destination: str) -> list[str]:
        return [delivery.id for delivery in self.deliveries(destination)]

    def deliveries(self, destination: str) -> list[Delivery]:
        if destination == STREAM:
            return self._read_stream()
        readers = {
            HANDLER: self._handled,
            WEBHOOK: self._received,
            ARCHIVE: self._archived,
            ACTOR: self._ran,
            QUEUE: self._queued,
        }
        lines = readers[destination].lines()
        return [
            Delivery(line["id"], destination, line["body"], line["payload"], line["at"])
            for line in lines
            if line["what"] == "accepted"
        ]

    def _read_stream(self) -> list[Delivery]:
        with redis.Redis.from_url(self.bus.url, socket_timeout=PATIENCE_SECONDS) as client:
            entries: Any = client.xrange(STREAM_KEY, min=self._stream_position)
        for position, fields in entries:
            whole = b"\0".join(part for name in sorted(fields) for part in (name, fields[name]))
            at = int(position.partition(b"-")[0]) / 1000
            data = digest(fields[b"data"])
            self._streamed.append(Delivery(fields[b"id"].decode(), STREAM, digest(whole), data, at))
            self._stream_position = f"({position.decode()}"
        return self._streamed

    def wait_until_others_pass(self, begun_at: float, *others: str) -> None:
        """Enough events that were emitted since then get to each of them."""
        for destination in others:
            passed = functools.partial(self._passed, destination, begun_at)
            self.wait_for(lambda: passed() >= ENOUGH, f"the {destination} goes on")  # noqa: B023 - called before the next

    def _passed(self, destination: str, begun_at: float) -> int:
        intended = {
            event["id"]
            for line in self._emitted.lines()
            if line["what"] == "intended" and line["at"] >= begun_at
            for event in line["events"]
        }
        return sum(id in intended for id in self.accepted(destination))

    def wait_for_unfinished(self, destination: str) -> int:
        """How many of a destination's events are under way, when there are some."""
        kinds = types_for(destination)
        self.wait_for(lambda: self.ask(UNDER_WAY, kinds)[0][0] > 0, f"events for the {destination} are under way")
        return int(self.ask(UNDER_WAY, kinds)[0][0])

    def wait_for_waiting(self, destination: str) -> int:
        """How many events wait for a worker that has a destination, when there are some."""
        count = """SELECT count(*) FROM outbox_event WHERE next_attempt_at IS NOT NULL
            AND (progress -> %s ->> 'absences')::int > 0"""
        self.wait_for(lambda: self.ask(count, destination)[0][0] > 0, f"events wait for the {destination}")
        return int(self.ask(count, destination)[0][0])

    def lost_answers(self) -> int:
        return sum(line["what"] == "lost" for line in self._received.lines())

    # The database

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._url, connect_timeout=10)

    def ask(self, query: str, *parameters: Any) -> list[Any]:
        """Over a connection of its own, again if that breaks."""
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with self.connect() as connection:
                    return connection.execute(query, parameters or None).fetchall()
            except psycopg.OperationalError:
                if time.monotonic() >= ends_at:
                    raise
                time.sleep(0.1)

    # The account

    def account(self) -> Account:
        changes: dict[str, list[tuple[float, str]]] = {}
        for id, at, what in self.ask(CHANGES):
            changes.setdefault(id, []).append((at, what))
        rows = self.ask(ROWS)
        runs = self.ask("SELECT extract(epoch FROM scheduled_at)::float8 FROM chaos_run")
        emitted = self._emitted.lines()
        errors = [line for line in emitted if line["what"] == "error"]
        return Account(
            transactions=transactions(emitted),
            deliveries=[
                delivery for to in (HANDLER, WEBHOOK, STREAM, ARCHIVE, ACTOR, QUEUE) for delivery in self.deliveries(to)
            ],
            faults=self.faults,
            errors=[Error(line["kind"], line["text"], line["at"], line["good_at"]) for line in errors],
            rows=[Row(id, status, digest(payload.encode()), error) for id, status, payload, error in rows],
            notes={name for (name,) in self.ask("SELECT transaction FROM chaos_note")},
            trespasses=[Trespass(id, what) for id, what in self.ask("SELECT event::text, what FROM chaos_trespass")],
            fenced=sum(int(count) for program in self.stage.programs for count in FENCED.findall(program.said())),
            changes=changes,
            runs=[at for (at,) in runs],
            ran=[line["scheduled_at"] for line in self._handled.lines() if line["what"] == "ran"],
            retried={
                line["id"] for line in self._handled.lines() if line["what"] == "accepted" and line["attempt"] > 1
            },
            effects=Counter(id for (id,) in self.ask("SELECT message FROM chaos_effect")),
        )

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        if not wait_until(condition, seconds):
            raise Stuck(f"did not come true in {seconds:g} s: {what}")
