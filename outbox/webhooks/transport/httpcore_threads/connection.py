"""Send one request after another over one connection of httpcore.

Each thread uses one connection at a time, so httpcore's connection pool is not needed.
"""

from __future__ import annotations

import contextlib
import ssl
from functools import cache

import httpcore
import httpx

from outbox.webhooks.transport import response_limits
from outbox.webhooks.transport.client_certificate import ClientContext
from outbox.webhooks.transport.httpcore_threads.deadline import Deadline
from outbox.webhooks.transport.httpcore_threads.network_backend import DeadlineBackend
from outbox.webhooks.transport.protocol import NoResponse, NotSent, Response, SendResult, WebhookRequest
from outbox.webhooks.transport.public_address import AddressNotAllowed
from outbox.webhooks.transport.resolver import Resolver
from outbox.webhooks.transport.response_limits import LimitExceeded
from outbox.webhooks.transport.response_summary import summarize
from outbox.webhooks.transport.url import Url

# Less than servers and load balancers usually keep an idle connection.
KEEP_ALIVE_SECONDS = 4.0


class Connection:
    """A connection to a receiver, made when it is needed, and made again when the receiver has closed it."""

    def __init__(
        self,
        resolver: Resolver,
        *,
        public_only: bool = False,
        proxy: Url | None = None,
        ssl_context: ssl.SSLContext | None = None,
        client_context: ClientContext | None = None,
    ) -> None:
        self._deadline = Deadline()
        # If only public addresses are allowed, the backend makes the tunnel, to an address that it has checked.
        tunnel_through = proxy if public_only else None
        self._proxy = None if public_only else proxy
        self._backend = DeadlineBackend(
            resolver, self._deadline, public_only=public_only, tunnel_through=tunnel_through
        )
        self._ssl_context = ssl_context
        self._client_context = client_context
        self._connection: httpcore.ConnectionInterface | None = None
        self._url: Url | None = None

    def send(self, request: WebhookRequest) -> SendResult:
        """Send a request and return its result. An error is returned as a result too, and not raised."""
        try:
            return self._read(self._respond(request))
        except AddressNotAllowed as error:
            return NotSent(str(error))
        except TimeoutError:
            return NoResponse(f"timed out while {self._deadline.operation}")
        except (OSError, httpcore.RemoteProtocolError, httpcore.ProxyError, LimitExceeded) as error:
            return self._explain(error)
        except Exception as error:
            return NotSent(f"not sent: {type(error).__name__}: {error}")

    @property
    def is_stale(self) -> bool:
        """Return whether a request would need a new connection: there is none, or it is closed or idle for too long."""
        connection = self._connection
        return connection is None or not connection.is_available() or connection.has_expired()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _respond(self, request: WebhookRequest) -> httpcore.Response:
        """Send a request and return httpcore's response. If a kept connection turns out to be dead, use a new one.

        The receiver may have closed the kept connection just when the request was sent; that is not an error. It may
        also have read the request and crashed. Then it gets the event twice, with the same id. That can happen after
        every lost response.
        """
        url = request.url
        if url is not self._url:
            self._prepare(url)
        headers = [*self._host_header, *request.headers, ("content-length", str(len(request.body)))]
        outgoing = httpcore.Request(b"POST", self._target, headers=headers, content=request.body)
        self._deadline.begin(request.ends_at)
        if self._connection is not None and not self.is_stale:
            try:
                return self._connection.handle_request(outgoing)
            except TimeoutError:
                raise
            except (OSError, httpcore.RemoteProtocolError):
                if self._deadline.response_began:
                    raise
        return self._connect(url).handle_request(outgoing)

    def _prepare(self, url: Url) -> None:
        """Make the parts that all requests to a URL have in common."""
        self.close()
        self._url = url
        self._target = httpcore.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.target)
        self._host_header = [("host", url.authority)]

    def _connect(self, url: Url) -> httpcore.ConnectionInterface:
        """Replace the connection by a new one, which httpcore opens with the first request."""
        self.close()
        origin = self._target.origin
        context = self._ssl_context
        if self._client_context is not None:
            context = self._client_context.current()
        elif context is None and url.scheme == "https":
            context = default_ssl_context()
        if self._proxy is None:
            self._connection = httpcore.HTTPConnection(
                origin, ssl_context=context, keepalive_expiry=KEEP_ALIVE_SECONDS, network_backend=self._backend
            )
        else:
            self._connection = httpcore.HTTPProxy(
                httpcore.URL(scheme="http", host=self._proxy.host, port=self._proxy.port, target="/"),
                proxy_auth=self._proxy.credentials,
                ssl_context=context,
                keepalive_expiry=KEEP_ALIVE_SECONDS,
                network_backend=self._backend,
            ).create_connection(origin)
        return self._connection

    def _read(self, response: httpcore.Response) -> Response:
        """Read the body within its limits, and return the summary. Ignore errors, because the status is known."""
        self._deadline.shorten(response_limits.BODY_SECONDS)
        body = bytearray()
        with contextlib.closing(response), contextlib.suppress(OSError, httpcore.RemoteProtocolError, LimitExceeded):
            for number, piece in enumerate(response.iter_stream(), 1):
                body += piece
                if len(body) >= response_limits.BODY_BYTES or number >= response_limits.BODY_PIECES:
                    break
        if _is_followed_by_more(response):
            self.close()
        reason = response.extensions.get("reason_phrase", b"")
        return summarize(response.status, reason, response.headers, bytes(body))

    def _explain(self, error: Exception) -> NoResponse:
        match error:
            case ssl.SSLCertVerificationError():
                return NoResponse(f"the receiver's certificate was not accepted: {error.verify_message}")
            case httpcore.ProxyError():
                return NoResponse(f"the proxy responded {error}")
            case OSError():
                what = error if error.strerror is None else error.strerror
                return NoResponse(f"{what} while {self._deadline.operation}")
            case LimitExceeded():
                return NoResponse(f"no HTTP response: {error}")
            case _:
                return NoResponse("no HTTP response", str(error))


@cache
def default_ssl_context() -> ssl.SSLContext:
    """Return one context for all connections: reading the certificate authorities takes longer than many requests."""
    return httpx.create_ssl_context()


def _is_followed_by_more(response: httpcore.Response) -> bool:
    """Return whether bytes have arrived after the response.

    The next request on this connection would take them for its own response. httpcore shows this in no public
    attribute. If a later version of httpcore moves the private one, this returns True: then connections are not kept,
    and a test fails.
    """
    connection = getattr(response.stream, "_connection", None)
    received = getattr(connection, "_h11_state", None)
    return received is None or received.trailing_data[0] != b""
