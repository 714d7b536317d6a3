"""A FastAPI application that places orders: each commits together with its event.

$ SHOP_DATABASE=postgresql://app:secret@localhost/shop uvicorn examples.async_shop.app:app
$ SHOP_DATABASE=… OUTBOX_REDIS_URL=… outbox worker examples.async_shop.handlers

$ curl -X POST localhost:8000/orders -H 'content-type: application/json' -d '{"number": 1, "total": 20}'
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import peewee
from fastapi import FastAPI, HTTPException
from playhouse.pwasyncio import AsyncModel, AsyncPostgresqlDatabase
from pydantic import BaseModel

import outbox

MOST_CREDIT = 1_000

db = AsyncPostgresqlDatabase(os.environ["SHOP_DATABASE"], pool_size=10)
outbox.configure(database=db)


class Order(AsyncModel):  # type: ignore[misc]  # playhouse carries no types
    """An order, in the application's own table."""

    number = peewee.IntegerField(primary_key=True)
    total = peewee.IntegerField()

    class Meta:
        database = db
        table_name = "shop_order"


class NewOrder(BaseModel):
    number: int
    total: int


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Create the tables, and close the pool at the end. In production, `outbox init` and migrations create them."""
    outbox.create_tables()
    await db.acreate_tables([Order], safe=True)
    yield
    await db.close_pool()


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place_order(new: NewOrder) -> dict[str, str]:
    """Place an order. If the customer has no credit for it, neither the order nor its event exists."""
    async with db.atomic():
        order = await Order.acreate(number=new.number, total=new.total)
        event = await outbox.aemit("Order", order.number, "order.placed", {"total": order.total})
        if new.total > MOST_CREDIT:
            raise HTTPException(402, "no credit for this total")
    return {"event": str(event.id)}
