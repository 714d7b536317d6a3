"""faststream-outbox over asyncpg, large fetches, many workers, deletions in batches."""

from __future__ import annotations

from typing import Any

import uvloop  # type: ignore[import-not-found]
from faststream import FastStream  # type: ignore[import-not-found]
from faststream_outbox import OutboxBroker, make_outbox_table  # type: ignore[import-not-found]
from sqlalchemy import MetaData  # type: ignore[import-not-found]
from sqlalchemy.ext.asyncio import create_async_engine  # type: ignore[import-not-found]

from benchmarks.peers.programs.program import POSTGRES, Ledger, main, payload, wait_for_the_word

BATCH = 100
WORKERS = 16

metadata = MetaData()
table = make_outbox_table(metadata, table_name="outbox")
engine = create_async_engine(POSTGRES.replace("postgresql://", "postgresql+asyncpg://"), pool_size=WORKERS + 4)
broker: Any = OutboxBroker(engine, outbox_table=table, logger=None)  # else two lines for each message


class Program:
    _started = False

    async def _start(self) -> None:
        if not self._started:
            await broker.connect()
            self._started = True

    async def prepare(self) -> None:
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)

    async def fill(self, first: int, count: int) -> None:
        await self._start()
        bodies = [payload(number) for number in range(first, first + count)]
        async with engine.begin() as connection:
            await broker.publish_batch(*bodies, queue="orders", session=connection)

    async def enqueue(self, number: int) -> None:
        await self._start()
        async with engine.begin() as connection:
            await broker.publish(payload(number), queue="orders", session=connection)

    async def work(self, processes: int) -> None:
        ledger = Ledger()

        @broker.subscriber(  # type: ignore[untyped-decorator]
            "orders",
            max_workers=WORKERS,
            fetch_batch_size=BATCH,
            terminal_flush_batch_size=BATCH,
            min_fetch_interval=0.001,
            max_fetch_interval=1.0,
        )
        async def handle(body: dict[str, Any]) -> None:
            ledger.stamp(body["number"])

        wait_for_the_word()
        await FastStream(broker).run()


if __name__ == "__main__":
    uvloop.run(main(Program()))
