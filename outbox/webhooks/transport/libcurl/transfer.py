"""Send one request after another on one easy handle of libcurl, over a connection that libcurl keeps.

The multi loop uses a transfer in this order:

1. `begin` sets the request. If `may_reuse_connection`, the loop gives the handle to libcurl.
2. Otherwise the loop resolves the name of `peer`, and calls `resolved`, until that returns True. Then it gives the
   handle to libcurl.
3. When libcurl has ended the transfer, `result` or `result_of_failure` returns the request's result. The latter may
   return None: then the request has to be sent again, from step 1 or 2.
"""

from __future__ import annotations

import io
import socket
import time
from typing import NamedTuple

import pycurl

from outbox.webhooks.transport.libcurl.easy_handle import Route, make_easy_handle, set_url
from outbox.webhooks.transport.libcurl.received_response import ReceivedResponse
from outbox.webhooks.transport.libcurl.transfer_errors import KEPT_CONNECTION_WAS_DEAD, OUR_ERRORS, explain
from outbox.webhooks.transport.protocol import NoResponse, NotSent, Response, WebhookRequest
from outbox.webhooks.transport.public_address import check_public, is_public
from outbox.webhooks.transport.resolver import SocketAddress, host_and_port
from outbox.webhooks.transport.url import Url

# select() can't wait for descriptors from 1024 on. For each one that we open, libcurl makes a duplicate, which may have
# a somewhat higher number.
HIGHEST_SELECTABLE = 1024 - 64


class Hop(NamedTuple):
    """Where a connection goes: to the receiver, to a proxy that resolves the receiver's name, or through a proxy."""

    proxy: SocketAddress | None
    receiver: SocketAddress | None


class Transfer:
    """One request at a time on an easy handle."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._url: Url | None = None
        self._sockets: list[socket.socket] = []
        self._not_allowed: str | None = None
        # Whether this try uses a new connection; otherwise it may use only a kept one.
        self._is_new_connection = False
        self._needs_new_connection = False
        # The address of the last connection, and those still to be tried if it fails.
        self._address: Hop | None = None
        self._untried: list[Hop] = []
        # The receiver's addresses, if they are checked and the proxy is to connect to one of them.
        self._checked: list[SocketAddress] | None = None
        # Whether its socket's descriptor is too high for select().
        self.is_beyond_select = False
        self._received = ReceivedResponse()
        self.header_lines = self._received.heads.lines
        self.handle = make_easy_handle(
            route,
            on_header_line=self.header_lines.append,
            on_body=self._received.body.append,
            open_socket=self._open_socket,
        )

    def close(self) -> None:
        self.handle.close()

    def begin(self, request: WebhookRequest) -> None:
        """Set the next request, to be sent over a kept connection."""
        self._request = request
        url = request.url
        if url is not self._url:
            self._url = url
            self._host_header = f"host: {url.authority}"
            self._forget_address()
            self._is_tunnel = set_url(self.handle, url, self._route.proxy)
        lines = [f"{name}: {value}" for name, value in request.headers]
        # libcurl sends these lines as they are: a line break in one of them would begin another header.
        text = "".join(lines)
        if "\n" in text or "\r" in text or "\0" in text:
            raise ValueError("a header has a line break")
        self.handle.setopt(pycurl.HTTPHEADER, [self._host_header, "expect:", *lines])
        self.handle.setopt(pycurl.POSTFIELDSIZE_LARGE, len(request.body))
        self._rewind(new_connection=False)

    @property
    def may_reuse_connection(self) -> bool:
        """Return whether libcurl may have a kept connection. Otherwise the loop has to resolve the name first."""
        return self._address is not None

    @property
    def is_late(self) -> bool:
        """Return whether the request's deadline has passed."""
        return time.monotonic() >= self._request.ends_at

    @property
    def peer(self) -> tuple[str, int]:
        """Return host and port to connect to: those of the proxy, or of the receiver.

        If the receiver's addresses have to be checked, although a proxy connects to it, the receiver comes first.
        """
        proxy = self._route.proxy
        must_be_checked = self._route.public_only and self._checked is None
        peer = self._request.url if proxy is None or must_be_checked else proxy
        return peer.host, peer.port

    @property
    def resolving(self) -> str:
        """Return the text that names the operation if an error occurs while the name is resolved."""
        return f"resolving {self.peer[0]}"

    def resolved(self, addresses: list[SocketAddress]) -> bool:
        """Take the addresses of `peer`. Return False if now the name of another peer has to be resolved.

        Otherwise prepare a new connection to the first address that accepts one.
        """
        proxy, receivers = self._route.proxy, self._checked
        if self._route.public_only and receivers is None:
            check_public(self.peer[0], addresses)
            if proxy is not None:
                self._checked = addresses
                return False
        if proxy is None:
            self._untried = [Hop(None, each) for each in addresses]
        elif receivers is None:
            self._untried = [Hop(each, None) for each in addresses]
        else:
            self._untried = [Hop(each, receiver) for each in addresses for receiver in receivers]
        self._connect_to_next()
        return True

    def _connect_to_next(self) -> None:
        self._address = hop = self._untried.pop(0)
        if hop.receiver is not None:  # with a proxy, libcurl asks it for a tunnel to this address
            self.handle.setopt(pycurl.CONNECT_TO, [f"::{host_and_port(hop.receiver)}"])
        if hop.proxy is not None:
            self.handle.setopt(pycurl.PROXY, f"http://{host_and_port(hop.proxy)}")
        self._rewind(new_connection=True)

    def _forget_address(self) -> None:
        """Have the names resolved again, and the addresses checked, before the next connection is made."""
        self._address = self._checked = None

    def _rewind(self, *, new_connection: bool) -> None:
        """Prepare to send the request from its beginning, over a new connection or over a kept one.

        Each address gets a share of the time left, so that one that drops packets does not use up all of it.
        """
        if new_connection != self._is_new_connection:
            self._is_new_connection = new_connection
            self.handle.setopt(pycurl.FRESH_CONNECT, int(new_connection))
        self._received.clear(through_tunnel=self._is_tunnel and new_connection)
        self._not_allowed = None
        self._needs_new_connection = False
        left = max(1, int((self._request.ends_at - time.monotonic()) * 1000))
        self.handle.setopt(pycurl.TIMEOUT_MS, left)
        if new_connection:
            self.handle.setopt(pycurl.CONNECTTIMEOUT_MS, max(1, left // (len(self._untried) + 1)))
        self.handle.setopt(pycurl.READFUNCTION, io.BytesIO(self._request.body).read)

    def _open_socket(self, purpose: int, address: tuple[int, int, int, tuple[str, int]]) -> socket.socket | int:
        """Return a socket for libcurl to connect, or SOCKET_BAD. libcurl calls this for every new connection.

        The address is checked once more, because libcurl connects to exactly this one.
        """
        family, kind, protocol, (text, *_) = address
        if not self._is_new_connection:
            self._needs_new_connection = True
            return pycurl.SOCKET_BAD
        if self._route.public_only and self._route.proxy is None and not is_public(text):
            self._not_allowed = f"not sent: {self.peer[0]} resolves to {text}, which is not a public address"
            return pycurl.SOCKET_BAD
        opened = socket.socket(family, kind, protocol)
        self._sockets.append(opened)
        self.is_beyond_select = opened.fileno() > HIGHEST_SELECTABLE
        return opened

    def close_sockets(self) -> None:
        """Close the sockets that were opened for libcurl. libcurl uses duplicates of their descriptors."""
        while self._sockets:
            self._sockets.pop().close()

    @property
    def exceeds_limits(self) -> bool:
        """Return whether the transfer should be ended now, because the receiver has sent too much or is too slow."""
        return self._received.exceeds_limits

    def result(self) -> Response | NoResponse:
        """Return the result of a request that libcurl has ended without an error, or that exceeds a limit."""
        status: int = self.handle.getinfo(pycurl.RESPONSE_CODE)
        return self._received.result(status)

    def result_of_failure(self, code: int, message: str) -> Response | NoResponse | NotSent | None:
        """Return the result of a request that libcurl has ended with an error; None if it has to be sent again.

        It is sent again if nothing was sent. It is also sent again, once, if it was sent over a kept connection and no
        line of a response came: the receiver may have closed that connection just when the request was sent, which is
        not an error. It may also have read the request and crashed. Then it gets the event twice, with the same id.
        That can happen after every lost response.
        """
        if self._not_allowed is not None:
            return NotSent(self._not_allowed)
        if self._needs_new_connection or (code == KEPT_CONNECTION_WAS_DEAD and not self._is_new_connection):
            self._forget_address()
            return None
        heads = self._received.heads
        heads.parse()
        if heads.of_receiver is not None or heads.excess is not None:
            return self.result()
        if self._is_new_connection and not self._is_connected:
            if self._untried and not self.is_late:
                self._connect_to_next()
                return None
            self._forget_address()
        if code in OUR_ERRORS:
            return NotSent(f"not sent: {message}")
        return explain(
            code,
            message,
            operation=self._operation(),
            is_connected=self._is_connected,
            system_error=self.handle.getinfo(pycurl.OS_ERRNO),
            proxy_response=heads.of_proxy,
        )

    @property
    def _is_connected(self) -> bool:
        """Return whether there is a connection to the receiver itself, with TLS if the URL is https."""
        measured = pycurl.CONNECT_TIME_T if self._request.url.scheme == "http" else pycurl.APPCONNECT_TIME_T
        return not self._is_new_connection or self.handle.getinfo(measured) > 0

    def _operation(self) -> str:
        """Return the text that says what the request was doing when it failed."""
        getinfo = self.handle.getinfo
        if self._is_new_connection:
            if not getinfo(pycurl.CONNECT_TIME_T):
                end = self._request.url if self._route.proxy is None else self._route.proxy
                return f"connecting to {end.host}, port {end.port}"
            if not self._is_connected:
                return "negotiating TLS"
        return "sending" if getinfo(pycurl.SIZE_UPLOAD_T) < len(self._request.body) else "waiting for the response"
