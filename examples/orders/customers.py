"""Place orders in the shop.

`python -m examples.orders.customers` does this in a process of its own, for workers that run elsewhere.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import threading

from examples.orders import shop

logger = logging.getLogger("shop")

NAMES = ("Ada", "Blaise", "Carl")
WISHES = ("teapot", "kettle", "teapot", "kettle", "samovar")


class Customers:
    """Place orders one after the other, and count those that were placed and those that were sold out."""

    def __init__(self) -> None:
        self.placed: list[int] = []
        self.turned_down = 0
        self._next = zip(itertools.cycle(NAMES), itertools.cycle(WISHES), strict=False)

    def visit(self, orders: int | None, pause_seconds: float, stopped: threading.Event) -> None:
        """Place this many orders or, if None, place orders until stopped."""
        for _ in itertools.count() if orders is None else range(orders):
            if stopped.wait(pause_seconds):
                return
            self._order()

    def _order(self) -> None:
        customer, product = next(self._next)
        try:
            self.placed.append(shop.place_order(customer, product).id)
        except shop.SoldOut:
            self.turned_down += 1
            logger.info("          rolled back: no %s left for %s", product, customer)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.orders.customers", description="Place orders.")
    parser.add_argument("--orders", type=int, default=10, help="place so many orders (default: %(default)s)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    shop.open_shop()
    Customers().visit(options.orders, 0, threading.Event())


if __name__ == "__main__":
    main()
