"""The shop: orders are placed in a transaction, and everything else follows from the events.

Workers load it by name, `outbox worker examples.orders.shop` or `outbox up examples.orders.shop`, and so get its
handlers.
"""

from __future__ import annotations

import logging

import peewee

import outbox
from examples.orders.services import CardDeclined, CardProvider, MailServer, Warehouse

logger = logging.getLogger("shop")

# Events and orders are in one database, so that one transaction holds both. Here it is the one that
# OUTBOX_DATABASE_URL names; an application that opens its own says `outbox.configure(database=its_own)`.
database = outbox.current().database

cards = CardProvider()
mail = MailServer(down_seconds=2)
warehouse = Warehouse()


class SoldOut(Exception):
    """There is none left: nothing of this order may remain."""


class Product(peewee.Model):
    name = peewee.CharField(primary_key=True)
    cents = peewee.IntegerField()
    stock = peewee.IntegerField()

    class Meta:
        database = database
        table_name = "shop_product"


class Order(peewee.Model):
    id = peewee.AutoField()
    customer = peewee.CharField()
    product = peewee.ForeignKeyField(Product)
    paid = peewee.BooleanField(default=False)

    class Meta:
        database = database
        table_name = "shop_order"


def open_shop() -> None:
    """Make the tables, the outbox's among them, and fill the shelves."""
    outbox.create_tables()
    database.create_tables([Product, Order])
    shelves = [("teapot", 2_900, 1_000_000), ("kettle", 4_900, 1_000_000), ("samovar", 19_900, 0)]
    Product.insert_many(shelves, [Product.name, Product.cents, Product.stock]).on_conflict_ignore().execute()


def place_order(customer: str, product: str) -> Order:
    """The order, its event and the stock: all three, or none of them."""
    with database.atomic():
        order = Order.create(customer=customer, product=product)
        # Placed once in its life: the default idempotency key, "Order:<id>", says just that.
        outbox.emit("Order", order.id, "order.placed", {"customer": customer, "product": product})
        _take_from_stock(product)
    logger.info("order %-3d placed: a %s for %s", order.id, product, customer)
    return order


def _take_from_stock(product: str) -> None:
    in_stock = (Product.name == product) & (Product.stock > 0)
    if not Product.update(stock=Product.stock - 1).where(in_stock).execute():
        raise SoldOut(product)


@outbox.handler("order.placed", name="charge")
def charge(event: outbox.Event) -> None:
    """Returning means delivered. An exception, here the provider's TimeoutError, means that it is tried again."""
    order = Order.get_by_id(event.aggregate_id)
    try:
        # An event can come twice after a crash. Its id is the same each time, and the provider charges once per key.
        cards.charge(order.id, order.product.cents, key=str(event.id))
    except CardDeclined as error:
        raise outbox.Reject(str(error)) from error  # trying again can't help
    with database.atomic():
        Order.update(paid=True).where(Order.id == order.id).execute()
        outbox.emit("Order", order.id, "order.paid", on_duplicate="ignore")


@outbox.handler("order.placed", name="confirm")
def confirm(event: outbox.Event) -> None:
    """The second handler of one event: it succeeds, fails and is retried on its own."""
    try:
        mail.send(int(event.aggregate_id), f"Dear {event.payload['customer']}, thank you!")
    except ConnectionError as error:
        raise outbox.Unavailable(str(error)) from error  # costs no attempt: it is not this event's fault


@outbox.handler("order.paid", name="pack")
def pack(event: outbox.Event) -> None:
    """Follows from an event that another handler emitted."""
    warehouse.pack(int(event.aggregate_id))
