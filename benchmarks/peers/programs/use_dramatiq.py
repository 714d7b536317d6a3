"""Dramatiq alone, on its Redis broker: no transaction, and no row to tell what became of it."""

from __future__ import annotations

import asyncio
import os
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.programs.program import REDIS, Ledger, main, payload, wait_for_the_word

broker = RedisBroker(url=REDIS)
dramatiq.set_broker(broker)
ledger: list[Ledger] = []


@dramatiq.actor(queue_name="orders")
def handle(number: int, text: str) -> None:
    if not ledger:
        ledger.append(Ledger())
    ledger[0].stamp(number)


class Program:
    async def prepare(self) -> None:
        pass

    async def fill(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            handle.send(**payload(number))

    async def enqueue(self, number: int) -> None:
        handle.send(**payload(number))

    async def work(self, processes: int) -> None:
        """Become its own command line."""
        wait_for_the_word()
        command = [sys.executable, "-m", "dramatiq", "benchmarks.peers.programs.use_dramatiq", "-p", str(processes)]
        os.execv(sys.executable, command)  # noqa: S606  (no shell, on purpose)


if __name__ == "__main__":
    asyncio.run(main(Program()))
