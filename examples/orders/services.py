"""Fake services that the shop's handlers call: unreliable on purpose, in the same way at each run.

Each service counts its calls; the summary compares these counts with the shop's tables.
"""

from __future__ import annotations

import logging
import time
from collections import Counter

logger = logging.getLogger("shop")


class CardDeclined(Exception):
    """The bank has declined the card; trying again can't help."""


class CardProvider:
    """Times out on every fourth order, once, and declines the card of every fifth."""

    def __init__(self) -> None:
        self.charged: Counter[int] = Counter()
        self.timed_out: set[int] = set()
        self.declined: set[int] = set()
        self._keys: set[str] = set()

    def charge(self, order: int, cents: int, key: str) -> None:
        if order % 4 == 0 and order not in self.timed_out:
            self.timed_out.add(order)
            logger.info("order %-3d card: the provider timed out", order)
            raise TimeoutError("the card provider did not respond")
        if order % 5 == 0:
            self.declined.add(order)
            logger.info("order %-3d card: declined", order)
            raise CardDeclined(f"the card of order {order} was declined")
        if key not in self._keys:
            self._keys.add(key)
            self.charged[order] += 1
            logger.info("order %-3d card: charged %.2f", order, cents / 100)


class MailServer:
    """Down for some seconds, from its first mail on."""

    def __init__(self, down_seconds: float) -> None:
        self.sent: Counter[int] = Counter()
        self.turned_away: set[int] = set()
        self._down_seconds = down_seconds
        self._back_at: float | None = None

    def send(self, order: int, text: str) -> None:
        if self._back_at is None:
            self._back_at = time.monotonic() + self._down_seconds
        if time.monotonic() < self._back_at:
            self.turned_away.add(order)
            logger.info("order %-3d mail: the server is down", order)
            raise ConnectionError("the mail server is down")
        self.sent[order] += 1
        logger.info("order %-3d mail: sent: %s", order, text)


class Warehouse:
    """Always works."""

    def __init__(self) -> None:
        self.packed: Counter[int] = Counter()

    def pack(self, order: int) -> None:
        self.packed[order] += 1
        logger.info("order %-3d parcel: packed", order)
