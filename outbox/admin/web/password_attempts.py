"""Slow down the guessing of passwords, for each address that the guesses come from.

The first few wrong passwords from an address cost nothing. Then each further one makes that address wait, twice as long
each time; while it waits, its passwords are not even compared. Only addresses with wrong passwords are remembered, and
not more than MOST_ADDRESSES of them.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.requests import HTTPConnection

FREE_ATTEMPTS = 5
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 300.0
# After this time without a wrong password, the count of an address begins again.
FORGET_SECONDS = 900.0
MOST_ADDRESSES = 10_000
# Everyone with IPv6 has at least so large a network of addresses.
IPV6_NETWORK = 64


class PasswordAttempts:
    """The wrong passwords of the last minutes, by address. Use it in one event loop; it has no lock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, most_addresses: int = MOST_ADDRESSES) -> None:
        self._clock = clock
        self._most = most_addresses
        # For each address: how many, when the last one was, and until when it has to wait. The latest is last.
        self._wrong: OrderedDict[str, tuple[int, float, float]] = OrderedDict()

    def wait_seconds(self, address: str) -> float:
        """Return how long the address has to wait before its next password is compared."""
        _, _, until = self._wrong.get(address, (0, 0.0, 0.0))
        return max(0.0, until - self._clock())

    def count_wrong(self, address: str) -> int:
        """Count a wrong password; return how many there were in a row."""
        now = self._clock()
        number, last, _ = self._wrong.pop(address, (0, now, now))
        number = 1 if now - last > FORGET_SECONDS else number + 1
        self._wrong[address] = (number, now, now + _wait_after(number))
        while len(self._wrong) > self._most:
            self._wrong.popitem(last=False)
        return number

    def __len__(self) -> int:
        return len(self._wrong)


def _wait_after(number: int) -> float:
    """Return the wait after this many wrong passwords."""
    beyond = number - FREE_ATTEMPTS
    return 0.0 if beyond < 0 else min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(beyond, 20))


def address_of(connection: HTTPConnection) -> str:
    """Return the address that a request comes from; for IPv6 its network, because a client has all of its addresses."""
    host = "" if connection.client is None else connection.client.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "an unknown address"  # a Unix socket
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), IPV6_NETWORK), strict=False))
    return str(address)
