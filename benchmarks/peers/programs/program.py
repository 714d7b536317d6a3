"""What the peers' programs share: their commands, and a ledger of when handlers were called."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

POSTGRES = os.environ.get("BENCH_POSTGRES", "")
REDIS = os.environ.get("BENCH_REDIS", "")
TEXT = "x" * 270
CHUNK = 1_000
FLUSH_SECONDS = 0.02


def payload(number: int) -> dict[str, Any]:
    """About 300 bytes as JSON."""
    return {"number": number, "text": TEXT}


class Ledger:
    """Written in the background: the handler itself costs next to nothing."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        threading.Thread(target=self._write, daemon=True).start()

    def stamp(self, number: int) -> None:
        self._lines.append(f"{number} {time.monotonic_ns()}\n")

    def _write(self) -> None:
        with Path(os.environ["BENCH_LEDGER"]).open("ab", buffering=0) as file:
            while True:
                time.sleep(FLUSH_SECONDS)
                lines, self._lines = self._lines, []
                if lines:
                    file.write("".join(lines).encode())


class Program(Protocol):
    """What a peer can do; numbers are those of the payloads."""

    async def prepare(self) -> None: ...

    async def fill(self, first: int, count: int) -> None: ...

    async def enqueue(self, number: int) -> None: ...

    async def work(self, processes: int) -> None: ...


async def main(program: Program) -> None:
    command, *numbers = sys.argv[1:]
    count = int(numbers[0]) if numbers else 1
    commands: dict[str, Callable[[], Awaitable[None]]] = {
        "prepare": program.prepare,
        "fill": lambda: fill(program, count),
        "enqueue": lambda: enqueue(program, count),
        "trickle": lambda: trickle(program, count),
        "work": lambda: program.work(count),
    }
    await commands[command]()


async def fill(program: Program, count: int) -> None:
    for first in range(0, count, CHUNK):
        await program.fill(first, min(CHUNK, count - first))


async def enqueue(program: Program, count: int) -> None:
    await program.enqueue(-1)  # connects
    began_at = time.perf_counter()
    for number in range(count):
        await program.enqueue(number)
    print(time.perf_counter() - began_at)


async def trickle(program: Program, count: int) -> None:
    chance = random.Random(1)  # noqa: S311  (the same pauses every time)
    lines = []
    for number in range(count):
        time.sleep(chance.uniform(0.02, 0.05))  # noqa: ASYNC251  (there is nothing else to do)
        await program.enqueue(number)
        lines.append(f"{number} {time.monotonic_ns()}\n")
    sys.stdout.write("".join(lines))


def wait_for_the_word() -> None:
    """Workers begin at the same moment."""
    print("ready", flush=True)
    sys.stdin.readline()
