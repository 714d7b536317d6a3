"""The shop: it places orders in a transaction, and handlers of events do everything else.

Workers import it by name, `outbox worker examples.orders.shop` or `outbox up examples.orders.shop`, and so register
its handlers.
"""

from __future__ import annotations

import logging

import peewee

import outbox
from examples.orders.services import CardDeclined, CardProvider, MailServer, Warehouse

logger = logging.getLogger("shop")

# Events and orders are in one database, so that one transaction holds both. Here it is the database of
# OUTBOX_DATABASE_URL; an application that opens its own calls `outbox.configure(database=its_own)`.
database = outbox.current().database

cards = CardProvider()
mail = MailServer(down_seconds=2)
warehouse = Warehouse()


class SoldOut(Exception):
    """The product is out of stock: the transaction of the order is rolled back."""


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
    """Create the tables of the shop and of the outbox, and the products."""
    outbox.create_tables()
    database.create_tables([Product, Order])
    products = [("teapot", 2_900, 1_000_000), ("kettle", 4_900, 1_000_000), ("samovar", 19_900, 0)]
    Product.insert_many(products, [Product.name, Product.cents, Product.stock]).on_conflict_ignore().execute()


def place_order(customer: str, product: str) -> Order:
    """Store the order, its event and the new stock in one transaction: all three, or none of them."""
    with database.atomic():
        order = Order.create(customer=customer, product=product)
        # An order is placed only once, so the default idempotency key, "Order:<id>", is right.
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
    """Charge the card. If the handler returns, the event is delivered; if it raises TimeoutError, it is retried."""
    order = Order.get_by_id(event.aggregate_id)
    try:
        # After a crash an event can be delivered twice, with the same id. The provider charges once per key.
        cards.charge(order.id, order.product.cents, key=str(event.id))
    except CardDeclined as error:
        raise outbox.Reject(str(error)) from error  # trying again can't help
    with database.atomic():
        Order.update(paid=True).where(Order.id == order.id).execute()
        outbox.emit("Order", order.id, "order.paid", on_duplicate="ignore")


@outbox.handler("order.placed", name="confirm")
def confirm(event: outbox.Event) -> None:
    """Send a mail. This is the second handler of the event: it succeeds, fails and is retried independently."""
    try:
        mail.send(int(event.aggregate_id), f"Dear {event.payload['customer']}, thank you!")
    except ConnectionError as error:
        raise outbox.Unavailable(str(error)) from error  # an outage costs the event no attempt


@outbox.handler("order.paid", name="pack")
def pack(event: outbox.Event) -> None:
    """Pack the parcel. The event was emitted by another handler, `charge`."""
    warehouse.pack(int(event.aggregate_id))
