"""Check whether an address is public and another host's, for webhooks with `allow_private=False`.

If customers choose the URL of a webhook, it must not reach services inside the sender's network, such as a cloud's
metadata service, nor services of this host, which may have a public address itself. The networks are listed here,
because `ipaddress.is_global` differs between Python's patch versions, and is true for IPv6 addresses that contain a
private IPv4 address.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from outbox.webhooks.transport.resolver import SocketAddress

# A UDP socket needs a port to be connected; nothing is sent to it.
ANY_PORT = 9

_NON_PUBLIC_IPV4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local, and the metadata services of clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)

# Only 2000::/3 is assigned to the public internet, and some parts of it are not public.
_GLOBAL_IPV6 = IPv6Network("2000::/3")
_NON_PUBLIC_IPV6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments; Teredo (2001::/32) is handled in `_contained_ipv4`
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
        "3ffe::/16",  # 6bone, no longer assigned
    )
)
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")


class AddressNotAllowed(Exception):
    """A host name resolves to an address to which the webhook may not connect."""


def check_public(host: str, addresses: Iterable[SocketAddress]) -> None:
    """Raise AddressNotAllowed unless every address is public, and none is this host's own."""
    for address in addresses:
        if not is_public(address.text):
            raise AddressNotAllowed(f"not sent: {host} resolves to {address.text}, which is not a public address")
        if is_own(address.text):
            raise AddressNotAllowed(f"not sent: {host} resolves to {address.text}, which is an address of this host")


def is_own(address: str) -> bool:
    """Return whether a connection to this address, or to an IPv4 address inside it, would end at this host.

    A connection to oneself has the same address at both ends. A UDP socket tells its own end as soon as it knows the
    other one, and nothing is sent. A public address that only a router in front of this host has can't be recognised.
    """
    if ":" not in address:
        return _leads_here(socket.AF_INET, address)
    contained = _contained_ipv4(IPv6Address(address.partition("%")[0]))
    return _leads_here(socket.AF_INET6, address) or any(_leads_here(socket.AF_INET, str(each)) for each in contained)


def _leads_here(family: socket.AddressFamily, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, ANY_PORT))
            return ip_address(probe.getsockname()[0]) == ip_address(address)
    except OSError:  # no route to it, so it is another host's
        return False


def is_public(address: str) -> bool:
    """Return whether an address, as a resolver returned it, is on the public internet."""
    try:
        if ":" not in address:
            return _is_public_ipv4(IPv4Address(address))
        return "%" not in address and _is_public_ipv6(IPv6Address(address))
    except AddressValueError:
        return False


def _is_public_ipv4(address: IPv4Address) -> bool:
    return not any(address in network for network in _NON_PUBLIC_IPV4)


def _is_public_ipv6(address: IPv6Address) -> bool:
    contained = _contained_ipv4(address)
    if contained:
        return all(map(_is_public_ipv4, contained))
    return address in _GLOBAL_IPV6 and not any(address in network for network in _NON_PUBLIC_IPV6)


def _contained_ipv4(address: IPv6Address) -> list[IPv4Address]:
    """Return the IPv4 addresses inside an IPv6 address, to which a router would forward its packets."""
    bits = int(address)
    if address in _MAPPED or address in _NAT64:
        return [_ipv4(bits)]
    if address in _SIX_TO_FOUR:
        return [_ipv4(bits >> 80)]
    if address in _TEREDO:
        return [_ipv4(bits >> 64), _ipv4(~bits)]  # the server, and the client behind it, whose bits are inverted
    return []


def _ipv4(bits: int) -> IPv4Address:
    return IPv4Address(bits & 0xFFFF_FFFF)
