"""One request after another on an easy handle of libcurl's.

libcurl is told little: to speak HTTP/1.1 with an address that was looked up and checked here. What it would do of its
own accord - use the environment's proxy, follow, unpack, send again - it does not do.
"""

from __future__ import annotations

import io
import os
import re
import socket
import time
from typing import NamedTuple

import pycurl

from outbox.webhooks.transport import response_summary as response
from outbox.webhooks.transport.libcurl.ca_certificates import CaCertificates
from outbox.webhooks.transport.libcurl.response_heads import ResponseHeads, is_good
from outbox.webhooks.transport.protocol import NoResponse, NotSent, Response, WebhookRequest
from outbox.webhooks.transport.public_address import check_public, is_public
from outbox.webhooks.transport.resolver import SocketAddress
from outbox.webhooks.transport.response_limits import BODY_PIECES, MOST_LINES
from outbox.webhooks.transport.url import Url

# Below what servers and what stands in front of them usually keep.
KEEP_ALIVE_SECONDS = 4
# What select() can wait for ends here; libcurl has a descriptor of its own beside the one that it was given.
LAST_IN_SIGHT = 1024 - 64

# On a kept connection that turned out to be dead, libcurl would send once more, on whichever it finds. It can't: it has
# no way to read the body again, and says so.
_DIED = pycurl.E_SEND_FAIL_REWIND
_OURS = frozenset((pycurl.E_URL_MALFORMAT, pycurl.E_FAILED_INIT, pycurl.E_OUT_OF_MEMORY, 43, 48))
_VERIFIED = re.compile(r"^SSL certificate (problem|OpenSSL verify result): ")
_BROKEN = frozenset((pycurl.E_SEND_ERROR, pycurl.E_RECV_ERROR))


class Route(NamedTuple):
    """How receivers are reached."""

    public_only: bool
    proxy: Url | None
    authorities: CaCertificates


class Transfer:
    """`begin`, then hand it to libcurl; when that is over, `answered` or `failed` says what it comes to."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._url: Url | None = None
        self._sockets: list[socket.socket] = []
        self._refusal: str | None = None
        self._opens = False
        # What it was last connected to; the addresses that are still to be tried, if it has to be connected anew.
        self._address: SocketAddress | None = None
        self._left: list[SocketAddress] = []
        self.is_out_of_sight = False
        self._heads = ResponseHeads()
        self.head = self._heads.lines
        self._body: list[bytes] = []
        self._counted = self._size = 0  # the pieces of the body that have been measured, and their bytes
        self._cut_at: float | None = None
        self.handle = self._made()

    def _made(self) -> pycurl.Curl:
        handle = pycurl.Curl()
        options = {
            pycurl.POST: 1,
            pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
            pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS,
            pycurl.FOLLOWLOCATION: 0,
            pycurl.HTTP_CONTENT_DECODING: 0,
            pycurl.NETRC: pycurl.NETRC_IGNORED,
            pycurl.NOSIGNAL: 1,
            pycurl.MAXAGE_CONN: KEEP_ALIVE_SECONDS,
            pycurl.SSL_VERIFYPEER: 1,
            pycurl.SSL_VERIFYHOST: 2,
            # An empty one is none, whatever the environment says; the same goes for exceptions from it.
            pycurl.PROXY: "",
            pycurl.NOPROXY: "",
            # Nothing of Python runs while libcurl does, but for a new connection: an interrupt would be lost in it.
            pycurl.HEADERFUNCTION: self.head.append,
            pycurl.WRITEFUNCTION: self._body.append,
            pycurl.OPENSOCKETFUNCTION: self._open,
        }
        for option, value in options.items():
            handle.setopt(option, value)
        file, folder = self._route.authorities
        for option, path in ((pycurl.CAINFO, file), (pycurl.CAPATH, folder)):
            if path is None:
                handle.unsetopt(option)
            else:
                handle.setopt(option, os.fsencode(path))
        return handle

    def close(self) -> None:
        self.handle.close()

    def begin(self, request: WebhookRequest) -> None:
        """On a connection that is kept, if this has had one."""
        self._request = request
        if request.url is not self._url:
            self._aim(request.url)
        lines = [f"{name}: {value}" for name, value in request.headers]
        # libcurl sends what it is given: a line must not be two.
        text = "".join(lines)
        if "\n" in text or "\r" in text or "\0" in text:
            raise ValueError("a header has a line break")
        self.handle.setopt(pycurl.HTTPHEADER, [self._host, "expect:", *lines])
        self.handle.setopt(pycurl.POSTFIELDSIZE_LARGE, len(request.body))
        self._rewind(opens=False)

    def _aim(self, url: Url) -> None:
        """The URL that libcurl gets has no path: whatever it says about it gives none away."""
        self._url = url
        self._host = f"host: {url.authority}"
        self._address = None
        proxy = self._route.proxy
        self._tunnels = proxy is not None and url.scheme == "https"
        self.handle.setopt(pycurl.URL, f"{url}/")
        is_absolute = proxy is not None and not self._tunnels
        target = f"{url.scheme}://{url.host}:{url.port}{url.target}" if is_absolute else url.target
        self.handle.setopt(pycurl.REQUEST_TARGET, target)
        if proxy is not None:
            self.handle.setopt(pycurl.HTTPPROXYTUNNEL, int(self._tunnels))
            if proxy.credentials is not None:
                user, password = proxy.credentials
                self.handle.setopt(pycurl.PROXYAUTH, pycurl.HTTPAUTH_BASIC)
                self.handle.setopt(pycurl.PROXYUSERNAME, user.encode())
                self.handle.setopt(pycurl.PROXYPASSWORD, password.encode())

    @property
    def may_be_kept(self) -> bool:
        """Whether it can be handed to libcurl as it is."""
        return self._address is not None

    @property
    def is_late(self) -> bool:
        return time.monotonic() >= self._request.ends_at

    @property
    def peer(self) -> tuple[str, int]:
        """Host and port that a connection is made to."""
        peer = self._request.url if self._route.proxy is None else self._route.proxy
        return peer.host, peer.port

    @property
    def resolving(self) -> str:
        return f"resolving {self.peer[0]}"

    def connect(self, addresses: list[SocketAddress]) -> None:
        """To the first of these that answers, on a new connection."""
        if self._route.public_only:
            check_public(self.peer[0], addresses)
        self._left = list(addresses)
        self._connect_to_next()

    def _connect_to_next(self) -> None:
        """Each gets its share of the time: one that swallows packets is not the end."""
        self._address = self._left.pop(0)
        place = written(self._address)
        if self._route.proxy is None:
            self.handle.setopt(pycurl.CONNECT_TO, [f"::{place}"])
        else:
            self.handle.setopt(pycurl.PROXY, f"http://{place}")
        self._rewind(opens=True)

    def _rewind(self, *, opens: bool) -> None:
        """From the start, on a new connection or on a kept one."""
        if opens != self._opens:
            self._opens = opens
            self.handle.setopt(pycurl.FRESH_CONNECT, int(opens))
        self._heads.clear(through_tunnel=self._tunnels and opens)
        self._body.clear()
        self._counted = self._size = 0
        self._cut_at = None
        self._refusal = None
        self._wants_to_open = False
        left = max(1, int((self._request.ends_at - time.monotonic()) * 1000))
        self.handle.setopt(pycurl.TIMEOUT_MS, left)
        if opens:
            self.handle.setopt(pycurl.CONNECTTIMEOUT_MS, max(1, left // (len(self._left) + 1)))
        self.handle.setopt(pycurl.READFUNCTION, io.BytesIO(self._request.body).read)

    def _open(self, purpose: int, place: tuple[int, int, int, tuple[str, int]]) -> socket.socket | int:
        """What is connected to is what is seen here, whatever was looked up and checked before."""
        family, kind, protocol, (text, *_) = place
        if not self._opens:
            self._wants_to_open = True
            return pycurl.SOCKET_BAD
        if self._route.public_only and not is_public(text):
            self._refusal = f"not sent: {self.peer[0]} leads to {text}, which is no public address"
            return pycurl.SOCKET_BAD
        opened = socket.socket(family, kind, protocol)
        self._sockets.append(opened)
        self.is_out_of_sight = opened.fileno() > LAST_IN_SIGHT
        return opened

    def let_go(self) -> None:
        """libcurl has a descriptor of its own for it."""
        while self._sockets:
            self._sockets.pop().close()

    def answered(self) -> Response | NoResponse:
        """Of one that took the event, nothing more is needed."""
        status: int = self.handle.getinfo(pycurl.RESPONSE_CODE)
        if is_good(status) and self._heads.are_short:
            return Response(status)
        self._heads.read()
        if self._heads.excess is not None:
            return NoResponse(f"no HTTP answer: {self._heads.excess}")
        answer = self._heads.answer
        if answer is None:  # libcurl takes 101 for an answer
            return NoResponse(f"no HTTP answer: nothing follows {status}")
        return response.read(answer.status, answer.reason, answer.headers, b"".join(self._body))

    @property
    def has_sent_enough(self) -> bool:
        """The receiver goes on for too long: before its answer, or after it, in bytes, in pieces or in time."""
        self._heads.read()
        if self._heads.answer is None:
            return self._heads.excess is not None
        if self._cut_at is None:
            self._cut_at = time.monotonic() + response.BODY_SECONDS
        pieces = len(self._body)
        self._size += sum(map(len, self._body[self._counted :]))
        self._counted = pieces
        return (
            self._size >= response.BODY_BYTES
            or pieces >= BODY_PIECES
            or len(self.head) > 2 * MOST_LINES  # trailers
            or time.monotonic() >= self._cut_at
        )

    def failed(self, code: int, message: str) -> Response | NoResponse | NotSent | None:
        """None: to be sent again, after a lookup or as it is now.

        That is so if nothing was sent; or if it was, once, on a kept connection, and not a line came back. Then the
        receiver may have closed that connection at the very moment when we wrote, which is nobody's failure. It may
        also have read the request and died: then it gets the event twice, as after any lost answer, and knows it by
        its id.
        """
        if self._refusal is not None:
            return NotSent(self._refusal)
        if self._wants_to_open or (code == _DIED and not self._opens):
            self._address = None
            return None
        self._heads.read()
        if self._heads.answer is not None or self._heads.excess is not None:
            return self.answered()
        if self._opens and not self._is_connected:
            if self._left and not self.is_late:
                self._connect_to_next()
                return None
            self._address = None
        if code in _OURS:
            return NotSent(f"not sent: {message}")
        return NoResponse(self._explain(code, message))

    @property
    def _is_connected(self) -> bool:
        """With the receiver itself, and TLS agreed on."""
        measured = pycurl.CONNECT_TIME_T if self._request.url.scheme == "http" else pycurl.APPCONNECT_TIME_T
        return not self._opens or self.handle.getinfo(measured) > 0

    def _explain(self, code: int, message: str) -> str:
        if code == pycurl.E_OPERATION_TIMEDOUT:
            return f"timed out while {self._doing()}"
        if code == pycurl.E_PEER_FAILED_VERIFICATION:
            return f"the receiver's certificate was not accepted: {_VERIFIED.sub('', message)}"
        if (said := self._heads.of_tunnel) is not None and not said.is_good:
            return f"the proxy answered {said.status} {said.reason.decode('latin-1')}".rstrip()
        if code in _BROKEN or not self._is_connected:
            number: int = self.handle.getinfo(pycurl.OS_ERRNO)
            return f"{os.strerror(number) if number else message} while {self._doing()}"
        if code == pycurl.E_GOT_NOTHING:
            return "no HTTP answer: Server disconnected without sending a response."
        return f"no HTTP answer: {message or f'error {code} of libcurl'}"

    def _doing(self) -> str:
        getinfo = self.handle.getinfo
        if self._opens:
            if not getinfo(pycurl.CONNECT_TIME_T):
                host, port = self.peer
                return f"connecting to {host}, port {port}"
            if not self._is_connected:
                return "agreeing on TLS"
        return "sending" if getinfo(pycurl.SIZE_UPLOAD_T) < len(self._request.body) else "waiting for the answer"


def written(address: SocketAddress) -> str:
    """As libcurl reads it."""
    host, port = address.text, address.sockaddr[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
