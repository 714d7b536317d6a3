"""Real processes for the tests: workers, schedulers, `outbox up`, emitters, around one database and one Redis.

A `Stage` starts them, writes into their environment where everything is, reads what became of the events, and ends
all of them when it closes. Should the test run itself be killed, a guard does that.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self
from uuid import UUID

import pytest
import redis
from playhouse.pool import PooledDatabase

import outbox
from outbox.core import Outbox
from outbox.dramatiq import wakeup
from outbox.dramatiq.actor_names import DELIVER
from outbox.dramatiq.redis_broker import OutboxRedisBroker
from outbox.events.new_event import NewEvent
from outbox.settings import PREFIX, Settings
from outbox.storage.connect import open_database
from tests.support.servers import GUARD, PATIENCE_SECONDS, Redis, alive, send, started_at, wait_until

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
HANDLERS = "tests.apps.ledger"

# A lease that ends on a machine that stands still for a moment is a second delivery: tests that wait for the end of a
# lease ask for a short one.
SETTINGS = {
    "lease_seconds": 30,
    "max_run_seconds": 60,
    "sweep_seconds": 0.3,
    "backoff_base_seconds": 0.1,
    "backoff_jitter": "off",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A handler began or ended."""

    what: str
    id: UUID
    body: str
    attempt: int
    pid: int

    @classmethod
    def read(cls, line: str) -> Self:
        fields = json.loads(line)
        return cls(**fields | {"id": UUID(fields["id"])})


class Program:
    """A process of ours, and what it says."""

    def __init__(self, command: Iterable[str | Path], environment: Mapping[str, str], output: Path) -> None:
        self.output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
            )
        self.pid = self._process.pid
        # Those that leave the process group, and outlive their parent, are known from before. The system gives the id
        # of a process that has ended to another one, perhaps to a server of another test: a process is known by its
        # id and the time of its start.
        self._known = {self.pid: started_at(self.pid)}

    def family(self) -> list[int]:
        """All of its processes that are alive, the first one first."""
        if self.running:
            self._known |= {pid: started_at(pid) for pid in descendants(self.pid) - self._known.keys()}
        return [pid for pid in sorted(self._known) if alive(pid) and started_at(pid) == self._known[pid]]

    def children(self) -> list[int]:
        return [pid for pid in self.family() if pid != self.pid]

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, what: signal.Signals) -> None:
        self._process.send_signal(what)

    def pause(self) -> None:
        """Freeze its children: for a worker, those that do the work."""
        children = self.children()
        send(signal.SIGSTOP, children)
        wait_until(lambda: all(map(stands_still, children)))

    def resume(self) -> None:
        send(signal.SIGCONT, self.children())

    def wait(self) -> int:
        """Wait for it to end by itself; answers its exit code."""
        return self._process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """End all of its processes at once, as a power cut would."""
        family = self.family()
        send(signal.SIGSTOP, family)  # so that none sees another's end
        send(signal.SIGKILL, family)
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        wait_until(lambda: not any(map(alive, family)))


class Stage:
    """Everything that belongs to one test."""

    def __init__(
        self, folder: Path, *, database_url: str, redis_url: str | None, create_tables: bool = True, **settings: Any
    ) -> None:
        self.folder = folder
        self.programs: list[Program] = []
        self.ledger = folder / "ledger"
        self._lines, self._entries = Lines(self.ledger), list[Entry]()
        self.redis_url = redis_url
        given = {"database_url": database_url, "namespace": f"test-{uuid.uuid4().hex}"} | SETTINGS | settings
        if redis_url is not None:
            given["redis_url"] = redis_url
        self.settings = Settings.load({}, **given)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(PREFIX)},
            **{PREFIX + name.upper(): str(value) for name, value in given.items()},
            "OUTBOX_TEST_LEDGER": str(self.ledger),
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
        }
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "guard", "KILL", folder / "nothing to remove"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.defpath},
            start_new_session=True,
        )
        # The test's own view: it emits, and nobody is woken by that.
        self.box = self.make_box()
        if create_tables:
            self.box.create_tables()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self.programs:
            program.kill()
        self._tell_guard()  # that none is left: their ids may belong to others soon
        for program in self.programs:
            print(f"--- {program.output.name}\n{program.said()[-5000:]}")  # noqa: T201 - shown if the test fails
        self._guard.communicate(timeout=PATIENCE_SECONDS)
        close_all(self.box)
        if self.redis_url is not None:
            with contextlib.suppress(redis.RedisError):
                for key in self.broker.client.scan_iter(f"{self.settings.namespace}:*"):
                    self.broker.client.delete(key)
            self.broker.client.close()

    # Programs

    def start(self, name: str, *command: str | Path, ready: str | None = None, times: int = 1) -> Program:
        """Start a program, and return when it says that it is ready."""
        output = self.folder / f"{len(self.programs)}-{name}.log"
        program = Program(command, self.environment, output)
        self.programs.append(program)
        if ready is not None:
            self.wait_for(lambda: program.said().count(ready) >= times or not program.running, f"{name} says {ready!r}")
            if program.said().count(ready) < times:
                pytest.fail(f"{name} ended, saying:\n{program.said()}")
        self._tell_guard()
        return program

    def worker(self, *modules: str, processes: int = 1, threads: int = 2) -> Program:
        command = [BIN / "dramatiq", "jobs", *(modules or [HANDLERS]), "-p", str(processes), "-t", str(threads)]
        return self.start("worker", *command, ready="ready for action", times=processes)

    def scheduler(self) -> Program:
        return self.start("scheduler", sys.executable, "-m", "scheduler", ready="scheduler started")

    def up(self, *modules: str) -> Program:
        return self.start("up", BIN / "outbox", "up", *(modules or [HANDLERS]), ready=" up: ")

    def run_python(self, code: str) -> str:
        """Run Python code, which may be indented, to its end; it must succeed. Return what it wrote to stderr."""
        command = [sys.executable, "-c", textwrap.dedent(code)]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def _tell_guard(self) -> None:
        assert self._guard.stdin is not None
        pids = [pid for program in self.programs for pid in program.family()]
        self._guard.stdin.write((" ".join(map(str, pids)) + "\n").encode())
        self._guard.stdin.flush()

    @cached_property
    def broker(self) -> OutboxRedisBroker:
        """The test's own way to the workers' queues."""
        return OutboxRedisBroker(self.settings)

    def wake(self) -> None:
        """Send the workers one wake-up."""
        wakeup.send(self.broker, self.settings.queue, DELIVER)

    # Events

    def make_box(self) -> Outbox:
        """An outbox of the test's own, on a connection of its own, that wakes nobody."""
        settings = Settings.load({}, database_url=self.settings.database_url, dispatch="off")
        return Outbox(settings, database=open_database(self.settings.database_url))

    def reconnect(self) -> None:
        """After the server was gone."""
        close_all(self.box)

    def emit(
        self, number: int = 1, *, max_attempts: int | None = None, ordering_key: str | None = None, **payload: Any
    ) -> list[UUID]:
        """Commit events in one transaction; their payload says what their handler does."""
        payload = {"do": "pass"} | payload
        events = [
            NewEvent(
                "Thing",
                str(n),
                "test.emitted",
                payload,
                idempotency_key=outbox.UNIQUE,
                max_attempts=max_attempts,
                ordering_key=ordering_key,
            )
            for n in range(number)
        ]
        with self.box.dialect.connection():
            return [event.id for event in self.box.emit_many(events)]

    def gate(self) -> Path:
        """For handlers that wait; open it with `touch`."""
        return self.folder / f"gate-{uuid.uuid4().hex}"

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        with self.box.dialect.connection():
            return list(self.box.dialect.run(f"SELECT {', '.join(columns)} FROM outbox_event").fetchall())  # noqa: S608

    def statuses(self) -> Counter[str]:
        count = "SELECT status, count(*) FROM outbox_event GROUP BY status"
        with self.box.dialect.connection():
            return Counter(dict(self.box.dialect.run(count).fetchall()))

    def entries(self, what: str) -> list[Entry]:
        """The ledger's entries of one kind, in their order."""
        self._entries += map(Entry.read, self._lines.new())
        return [entry for entry in self._entries if entry.what == what]

    def began(self) -> list[UUID]:
        return [entry.id for entry in self.entries("began")]

    def ended(self) -> list[UUID]:
        return [entry.id for entry in self.entries("ended")]

    # Waiting

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        if not wait_until(condition):
            pytest.fail(f"did not come true: {what}")

    def wait_until_begun(self, *ids: UUID) -> None:
        self.wait_for(lambda: set(ids) <= set(self.began()), f"handlers of {ids} began")

    def wait_until_all(self, *statuses: str) -> None:
        """Every event is in one of these states."""
        self.wait_for(lambda: set(self.statuses()) <= set(statuses), f"every event is {' or '.join(statuses)}")


class MakeStage(Protocol):
    def __call__(self, **settings: Any) -> Stage: ...


@pytest.fixture
def make_stage(tmp_path: Path, postgres_url: str, redis_server: Redis) -> Iterator[MakeStage]:
    """Set the stage: `stage = make_stage(lease_seconds=1)`; on the shared servers, unless the test names its own."""
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> Stage:
            given = {"database_url": postgres_url, "redis_url": redis_server.url} | settings
            return stack.enter_context(Stage(tmp_path, **given))

        yield make


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    return make_stage()


class Emitter:
    """A process that emits and commits, one event after another."""

    def __init__(self, stage: Stage, *modules: str) -> None:
        self._stage = stage
        self._stop = stage.folder / "stop-emitting"
        self._committed = stage.folder / "committed"
        self._lines, self._ids = Lines(self._committed), list[UUID]()
        arguments = (str(self._stop), str(self._committed), *modules)
        self.program = stage.start("emitter", sys.executable, "-m", "tests.apps.emitter", *arguments, ready="emitting")

    def committed(self) -> list[UUID]:
        self._ids += map(UUID, self._lines.new())
        return self._ids.copy()

    def wait_for_more(self, number: int) -> None:
        """Wait for that many further commits."""
        before = len(self.committed())
        self._stage.wait_for(lambda: len(self.committed()) >= before + number, f"{number} more commits")

    def stop(self) -> int:
        self._stop.touch()
        return self.program.wait()


def close_all(box: Outbox) -> None:
    assert isinstance(box.database, PooledDatabase)
    box.database.close_all()


class Lines:
    """The lines of a file to which processes append. A test that waits looks often, and reads each line once."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = 0

    def new(self) -> list[str]:
        """Return the lines that have been completed since the last call."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as file:
            file.seek(self._read)
            complete, end, _ = file.read().rpartition(b"\n")
        self._read += len(complete) + len(end)
        return complete.decode().splitlines()


def whole_lines(file: Path) -> list[str]:
    """The lines that are complete; somebody may be writing another."""
    return Lines(file).new()


def stands_still(pid: int) -> bool:
    """Whether all threads of a process are stopped."""
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) <= {"T"}


def descendants(pid: int) -> set[int]:
    """The ids of a process's children, and theirs."""
    parents = dict(_parents())
    found: set[int] = set()
    ring = {pid}
    while ring:
        ring = {child for child, parent in parents.items() if parent in ring} - found
        found |= ring
    return found


def _parents() -> Iterator[tuple[int, int]]:
    """Every process with its parent."""
    if Path("/proc/self/stat").exists():
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # The name before it stands in brackets, and may hold anything.
                yield int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])
        return
    listed = subprocess.run([shutil.which("ps") or "ps", "-A", "-o", "pid=,ppid="], capture_output=True, check=True)
    for line in listed.stdout.decode().splitlines():
        child, parent = line.split()
        yield int(child), int(parent)
