"""A peer, run as a program of its own.

Every program knows the same commands: `prepare`, `fill N`, `enqueue N` (one per transaction; says how many seconds it
took), `trickle N` (one per transaction with pauses; says when each commit returned), and `work`, which says that it
is ready, waits for a line, and writes down in the file BENCH_LEDGER when its handler was called for which number.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.guard import Guard
from benchmarks.peers.environment import ROOT, Environments, PeerUnavailable

if TYPE_CHECKING:
    from benchmarks.ground import Ground

PATIENCE_SECONDS = 180.0
# A peer that leaves some behind is measured by those that it has handled.
NEARLY_ALL, QUIET_SECONDS = 0.99, 10.0
WARM_UP = 20

Command = Callable[[Environments], list[str]]


def python(module: str) -> Command:
    return lambda environments: [str(environments.python), "-m", f"benchmarks.peers.programs.{module}"]


def node(file: str) -> Command:
    return lambda environments: ["node", str(_with_packages(environments.node, file))]


def _with_packages(folder: Path, file: str) -> Path:
    """Node looks for packages beside the program."""
    for source in (Path(__file__).parent / "programs").glob("*.mjs"):
        (folder / source.name).write_bytes(source.read_bytes())
    return folder / file


@dataclass(frozen=True, slots=True)
class Peer:
    """How it is started; `forks` says that it starts its worker processes itself."""

    command: Command
    forks: bool = False
    most_events: int | None = None

    def drain(self, ground: Ground, processes: int) -> float:
        """Events per second, from the first call of the handler to the last."""
        count = ground.size.events if self.most_events is None else min(self.most_events, ground.size.events)
        with self._set_up(ground) as run:
            run.call("fill", count)
            with run.workers(processes, forks=self.forks):
                stamps = run.wait_for(count)
        times = sorted(stamps.values())
        return (len(times) - 1) / (times[-1] - times[0]) * 1e9

    def enqueue(self, ground: Ground) -> float:
        """One per transaction, per second."""
        with self._set_up(ground) as run:
            run.call("enqueue", WARM_UP)
            return ground.size.transactions / float(run.call("enqueue", ground.size.transactions))

    def latencies(self, ground: Ground) -> list[float]:
        """Milliseconds from the commit's return to the handler."""
        with self._set_up(ground) as run, run.workers(1, forks=self.forks):
            count = ground.size.latencies + WARM_UP
            committed = [int(line.split()[1]) for line in run.call("trickle", count).splitlines()]
            called = run.wait_for(count)
            return [
                (called[number] - at) / 1e6
                for number, at in enumerate(committed)
                if number >= WARM_UP and number in called
            ]

    @contextmanager
    def _set_up(self, ground: Ground) -> Iterator[Run]:
        command = self.command(ground.environments)
        ledger = ground.folder / "peer-ledger"
        ledger.unlink(missing_ok=True)
        with ground.site() as site:
            environment = {
                **os.environ,
                "BENCH_POSTGRES": site.url,
                "BENCH_REDIS": site.redis_url,
                "BENCH_LEDGER": str(ledger),
                "PYTHONUNBUFFERED": "1",
            }
            run = Run(command, environment, ledger)
            run.call("prepare")
            yield run


@dataclass(frozen=True, slots=True)
class Run:
    """One peer on one database."""

    command: list[str]
    environment: dict[str, str]
    ledger: Path

    def call(self, *arguments: object) -> str:
        done = subprocess.run(
            [*self.command, *map(str, arguments)], cwd=ROOT, env=self.environment, capture_output=True, text=True,
            check=False, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            raise PeerUnavailable(f"{arguments[0]} fails: {lines[-1] if lines else done.returncode}")
        return done.stdout

    @contextmanager
    def workers(self, processes: int, *, forks: bool) -> Iterator[None]:
        """Ready, and then off at the same moment."""
        with ExitStack() as stack:
            started = [
                stack.enter_context(self._worker(processes if forks else 1)) for _ in range(1 if forks else processes)
            ]
            for process in started:
                assert process.stdin is not None  # noqa: S101  (for the type checker)
                process.stdin.write("\n")
                process.stdin.flush()
            yield

    @contextmanager
    def _worker(self, processes: int) -> Iterator[subprocess.Popen[str]]:
        command = [*self.command, "work", str(processes)]
        with (
            (self.ledger.parent / "peer.log").open("w") as log,
            subprocess.Popen(
                command, cwd=ROOT, env=self.environment, text=True, stderr=log, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            ) as process,
            Guard(process.pid),
        ):  # fmt: skip
            try:
                assert process.stdout is not None  # noqa: S101  (for the type checker)
                if process.stdout.readline().strip() != "ready":
                    raise PeerUnavailable(f"its worker does not start: {self._last_words()}")
                # What it goes on to say must not fill the pipe.
                threading.Thread(target=process.stdout.read, daemon=True).start()
                yield process
            finally:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()

    def wait_for(self, count: int) -> dict[int, int]:
        """When the handler was first called for each number; of a few that never come, it is not told."""
        ends_at = time.monotonic() + PATIENCE_SECONDS
        seen, seen_at = 0, time.monotonic()
        while len(stamps := self._stamps()) < count:
            now = time.monotonic()
            if len(stamps) > seen:
                seen, seen_at = len(stamps), now
            if seen >= count * NEARLY_ALL and now - seen_at > QUIET_SECONDS:
                break
            if now > ends_at:
                raise PeerUnavailable(f"{seen} of {count} handled within {PATIENCE_SECONDS:.0f} s")
            time.sleep(0.2)
        return stamps

    def _stamps(self) -> dict[int, int]:
        text = self.ledger.read_text() if self.ledger.exists() else ""
        stamps: dict[int, int] = {}
        for line in text.rpartition("\n")[0].splitlines():
            number, at = line.split()
            stamps.setdefault(int(number), int(at))
        return stamps

    def _last_words(self) -> str:
        lines = (self.ledger.parent / "peer.log").read_text().strip().splitlines()
        return lines[-1] if lines else "without a word"
