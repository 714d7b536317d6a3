"""Ask a proxy for a tunnel to an address that was checked.

httpcore would ask for a tunnel to the receiver's name. The proxy would then resolve the name itself, possibly to
another address than the one that was checked.
"""

from __future__ import annotations

import base64
from http import HTTPStatus

import h11
import httpcore

from outbox.webhooks.transport.url import Url

READ_BYTES = 16 * 1024


def open_tunnel(stream: httpcore.NetworkStream, target: str, proxy: Url) -> None:
    """Ask the proxy at the other end for a tunnel to `target`, an address and a port; raise ProxyError if it refuses.

    After that, what is written to the stream reaches the receiver.
    """
    headers = [("host", target)]
    if proxy.credentials is not None:
        pair = base64.b64encode(":".join(proxy.credentials).encode()).decode()
        headers.append(("proxy-authorization", f"Basic {pair}"))
    protocol = h11.Connection(h11.CLIENT)
    request = h11.Request(method="CONNECT", target=target, headers=headers)
    stream.write((protocol.send(request) or b"") + (protocol.send(h11.EndOfMessage()) or b""))
    try:
        response = _response(stream, protocol)
    except h11.RemoteProtocolError as error:
        raise httpcore.RemoteProtocolError(f"the proxy: {error}") from error
    if not HTTPStatus.OK <= response.status_code < HTTPStatus.MULTIPLE_CHOICES:
        raise httpcore.ProxyError(f"{response.status_code} {response.reason.decode('latin-1')}".rstrip())
    if protocol.trailing_data[0]:
        raise httpcore.RemoteProtocolError("the proxy sent data before the receiver was asked for any")


def _response(stream: httpcore.NetworkStream, protocol: h11.Connection) -> h11.Response:
    """Return the final response. Interim ones are ignored; the stream limits how many there may be."""
    while not isinstance(event := protocol.next_event(), h11.Response):
        if event is h11.NEED_DATA:
            protocol.receive_data(stream.read(READ_BYTES))
    return event
