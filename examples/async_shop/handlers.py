"""What follows an order: a worker awaits this on its event loop, up to 100 orders at the same time."""

from __future__ import annotations

import outbox
from examples.async_shop.app import Order, db


@outbox.handler("order.placed", name="confirm")
async def confirm(event: outbox.Event) -> None:
    """Confirm the order, and say so in the same transaction. Safe to repeat: the second event would be a duplicate."""
    async with db.atomic():
        order = await Order.aget(Order.number == int(event.aggregate_id))
        payload = {"total": order.total}
        await outbox.aemit("Order", order.number, "order.confirmed", payload, on_duplicate="ignore")
