"""procrastinate over psycopg's asynchronous pool, many jobs at once, done jobs deleted."""

from __future__ import annotations

from typing import Any

import procrastinate  # type: ignore[import-not-found]
import uvloop  # type: ignore[import-not-found]

from benchmarks.peers.programs.program import POSTGRES, Ledger, main, payload, wait_for_the_word

AT_ONCE = 20

app: Any = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=POSTGRES, max_size=AT_ONCE + 2))
ledger: list[Ledger] = []


@app.task(name="order", queue="orders")  # type: ignore[untyped-decorator]
async def handle(number: int, text: str) -> None:
    ledger[0].stamp(number)


class Program:
    _is_open = False

    async def _open(self) -> None:
        if not self._is_open:
            await app.open_async()
            self._is_open = True

    async def prepare(self) -> None:
        await self._open()
        await app.schema_manager.apply_schema_async()
        await app.close_async()

    async def fill(self, first: int, count: int) -> None:
        await self._open()
        await handle.batch_defer_async(*(payload(number) for number in range(first, first + count)))

    async def enqueue(self, number: int) -> None:
        await self._open()
        await handle.defer_async(**payload(number))

    async def work(self, processes: int) -> None:
        ledger.append(Ledger())
        await self._open()
        wait_for_the_word()
        await app.run_worker_async(queues=["orders"], concurrency=AT_ONCE, delete_jobs="successful")


if __name__ == "__main__":
    uvloop.run(main(Program()))
