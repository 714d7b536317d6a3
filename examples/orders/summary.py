"""Count what has happened, in the shop's tables, the events and the services, and check that the numbers agree."""

from __future__ import annotations

from dataclasses import dataclass

from examples.orders import shop
from examples.orders.customers import Customers
from outbox import OutboxEvent


@dataclass(frozen=True, slots=True)
class Summary:
    """Numbers from the customers, from the tables and from the services."""

    placed: int
    rolled_back: int
    orders: int
    paid_orders: int
    placed_events: int
    paid_events: int
    delivered: int
    failed: int
    unfinished: int
    second_attempts: int
    charged: int
    declined: int
    timed_out: int
    mails: int
    mails_turned_away: int
    parcels: int
    repeated: int

    def problems(self) -> list[str]:
        """Return a line for each pair of numbers that should be equal and are not."""
        emitted = self.placed_events + self.paid_events
        sums = {
            "events emitted = delivered + failed": (emitted, self.delivered + self.failed),
            "unfinished events = 0": (self.unfinished, 0),
            "orders in the table = orders placed": (self.orders, self.placed),
            "order.placed events = orders placed, none for rolled-back orders": (self.placed_events, self.placed),
            "order.paid events = orders paid": (self.paid_events, self.paid_orders),
            "orders paid = cards charged": (self.paid_orders, self.charged),
            "orders placed = cards charged + declined": (self.placed, self.charged + self.declined),
            "failed events = cards declined": (self.failed, self.declined),
            "events that took a second attempt = cards that timed out": (self.second_attempts, self.timed_out),
            "mails sent = orders placed, so each that was turned away was sent later": (self.mails, self.placed),
            "parcels packed = orders paid": (self.parcels, self.paid_orders),
            "things done twice = 0": (self.repeated, 0),
        }
        return [f"{left} is not {right}: {name}" for name, (left, right) in sums.items() if left != right]

    def __str__(self) -> str:
        emitted = self.placed_events + self.paid_events
        charges, mails = self.timed_out, self.mails_turned_away
        rows = {
            "emitted": f"{emitted} events (order.placed {self.placed_events}, order.paid {self.paid_events})",
            "delivered": f"{self.delivered} events",
            "failed": f"{self.failed} events (cards declined {self.declined})",
            "retried": f"{charges + mails} calls (charges after a timeout {charges}, mails after an outage {mails})",
            "done": f"charges {self.charged}, mails {self.mails}, parcels {self.parcels}",
            "rolled back": f"{self.rolled_back} orders (no event was emitted for them)",
        }
        return "\n".join(f"{name:>12}  {text}" for name, text in rows.items())


def summarize(customers: Customers) -> Summary:
    """Return the numbers of this run."""
    cards, mail, warehouse = shop.cards, shop.mail, shop.warehouse
    done = [*cards.charged.values(), *mail.sent.values(), *warehouse.packed.values()]
    return Summary(
        placed=len(customers.placed),
        rolled_back=customers.turned_down,
        orders=shop.Order.select().count(),
        paid_orders=shop.Order.select().where(shop.Order.paid).count(),
        placed_events=_count(event_type="order.placed"),
        paid_events=_count(event_type="order.paid"),
        delivered=_count(status="delivered"),
        failed=_count(status="failed"),
        unfinished=unfinished(),
        second_attempts=_count(attempts=2),
        charged=len(cards.charged),
        declined=len(cards.declined),
        timed_out=len(cards.timed_out),
        mails=len(mail.sent),
        mails_turned_away=len(mail.turned_away),
        parcels=len(warehouse.packed),
        repeated=sum(times - 1 for times in done),
    )


def unfinished() -> int:
    """Return how many events are neither delivered nor failed yet."""
    return OutboxEvent.select().where(OutboxEvent.next_attempt_at.is_null(False)).count()


def _count(**having: object) -> int:
    return OutboxEvent.select().filter(**having).count()
