"""Which addresses are the public internet's, and which lead into somebody's own network.

Spelled out rather than left to `ipaddress.is_global`, which differs between Python's patch versions and is true for
addresses that only carry another one inside.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network

from outbox.webhooks.transport.resolver import SocketAddress

_CLOSED_4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by the customers of a carrier
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local, and the metadata services of clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)

# What is not assigned to the internet is not public; of what is, these are not.
_GLOBAL_6 = IPv6Network("2000::/3")
_CLOSED_6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments; Teredo, which is among them, is judged by what it carries
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
        "3ffe::/16",  # returned
    )
)
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")


class AddressNotAllowed(Exception):
    """A name leads to where this webhook must not go."""


def check_public(host: str, addresses: Iterable[SocketAddress]) -> None:
    """Every one: a name with a public address and a private one is not half right."""
    for address in addresses:
        if not is_public(address.text):
            raise AddressNotAllowed(f"not sent: {host} leads to {address.text}, which is no public address")


def is_public(address: str) -> bool:
    """Whether an address, as a resolver returned it, is on the public internet."""
    try:
        if ":" not in address:
            return _is_public_4(IPv4Address(address))
        return "%" not in address and _is_public_6(IPv6Address(address))
    except AddressValueError:
        return False


def _is_public_4(address: IPv4Address) -> bool:
    return not any(address in network for network in _CLOSED_4)


def _is_public_6(address: IPv6Address) -> bool:
    inside = _inside(address)
    if inside:
        return all(map(_is_public_4, inside))
    return address in _GLOBAL_6 and not any(address in network for network in _CLOSED_6)


def _inside(address: IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses that packets to this one end up at."""
    bits = int(address)
    if address in _MAPPED or address in _NAT64:
        return [_ipv4(bits)]
    if address in _SIX_TO_FOUR:
        return [_ipv4(bits >> 80)]
    if address in _TEREDO:
        return [_ipv4(bits >> 64), _ipv4(~bits)]  # the server, and the client behind it with every bit turned
    return []


def _ipv4(bits: int) -> IPv4Address:
    return IPv4Address(bits & 0xFFFF_FFFF)
