"""PgQueuer over asyncpg, with large batches and uvloop."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import uvloop  # type: ignore[import-not-found]
from pgqueuer import PgQueuer  # type: ignore[import-not-found]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]

from benchmarks.peers.programs.program import POSTGRES, Ledger, main, payload, wait_for_the_word

BATCH = 100


class Program:
    _connection: Any = None

    async def _queries(self) -> Any:
        if self._connection is None:
            self._connection = await asyncpg.connect(POSTGRES)
        return Queries(AsyncpgDriver(self._connection))

    async def prepare(self) -> None:
        await (await self._queries()).install()

    async def fill(self, first: int, count: int) -> None:
        bodies = [json.dumps(payload(number)).encode() for number in range(first, first + count)]
        await (await self._queries()).enqueue(["order"] * count, bodies, [0] * count)

    async def enqueue(self, number: int) -> None:
        await (await self._queries()).enqueue("order", json.dumps(payload(number)).encode())

    async def work(self, processes: int) -> None:
        ledger = Ledger()
        queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(POSTGRES)))

        @queue.entrypoint("order")  # type: ignore[untyped-decorator]
        async def handle(job: Any) -> None:
            ledger.stamp(json.loads(job.payload)["number"])

        wait_for_the_word()
        await queue.run(dequeue_timeout=timedelta(seconds=5), batch_size=BATCH)


if __name__ == "__main__":
    uvloop.run(main(Program()))
