"""One connection, and one request after another on it."""

from __future__ import annotations

import contextlib
import ssl
from functools import cache

import httpcore
import httpx

from outbox.webhooks.transport import response_summary as response
from outbox.webhooks.transport.httpcore_threads.deadline import Deadline
from outbox.webhooks.transport.httpcore_threads.network_backend import DeadlineBackend
from outbox.webhooks.transport.protocol import NoResponse, NotSent, Response, SendResult, WebhookRequest
from outbox.webhooks.transport.public_address import AddressNotAllowed
from outbox.webhooks.transport.resolver import Resolver
from outbox.webhooks.transport.response_limits import BODY_PIECES, LimitExceeded
from outbox.webhooks.transport.url import Url

# Below what servers and what stands in front of them usually keep.
KEEP_ALIVE_SECONDS = 4.0


class Connection:
    """Sends with httpcore's connections, without a pool around them: each sender has one."""

    def __init__(
        self,
        resolver: Resolver,
        *,
        public_only: bool = False,
        proxy: Url | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._deadline = Deadline()
        self._network = DeadlineBackend(resolver, self._deadline, public_only=public_only)
        self._proxy = proxy
        self._ssl_context = ssl_context
        self._connection: httpcore.ConnectionInterface | None = None
        self._url: Url | None = None

    def send(self, request: WebhookRequest) -> SendResult:
        """Never raises: whatever goes wrong is this request's answer."""
        try:
            return self._read(self._respond(request))
        except AddressNotAllowed as error:
            return NotSent(str(error))
        except TimeoutError:
            return NoResponse(f"timed out while {self._deadline.doing}")
        except (OSError, httpcore.RemoteProtocolError, httpcore.ProxyError, LimitExceeded) as error:
            return NoResponse(self._explain(error))
        except Exception as error:
            return NotSent(f"not sent: {type(error).__name__}: {error}")

    @property
    def is_stale(self) -> bool:
        """The connection is gone, or has been at rest for too long."""
        connection = self._connection
        return connection is None or not connection.is_available() or connection.has_expired()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _respond(self, request: WebhookRequest) -> httpcore.Response:
        """Send, and on a kept connection that turns out to be dead send once more on a new one.

        The receiver may have closed it at the very moment when we wrote, which is nobody's failure. It may also have
        read the request and died: then it gets the event twice, as after any lost answer, and knows it by its id.
        """
        url = request.url
        if url is not self._url:
            self._aim(url)
        headers = [*self._first, *request.headers, ("content-length", str(len(request.body)))]
        written = httpcore.Request(b"POST", self._target, headers=headers, content=request.body)
        self._deadline.begin(request.ends_at)
        if self._connection is not None and not self.is_stale:
            try:
                return self._connection.handle_request(written)
            except TimeoutError:
                raise
            except (OSError, httpcore.RemoteProtocolError):
                if self._deadline.answered:
                    raise
        return self._connect(url).handle_request(written)

    def _aim(self, url: Url) -> None:
        """What is the same for all requests to a URL."""
        self.close()
        self._url = url
        self._target = httpcore.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.target)
        self._first = [("host", url.authority)]

    def _connect(self, url: Url) -> httpcore.ConnectionInterface:
        self.close()
        origin = self._target.origin
        context = self._ssl_context
        if context is None and url.scheme == "https":
            context = default_ssl_context()
        if self._proxy is None:
            self._connection = httpcore.HTTPConnection(
                origin, ssl_context=context, keepalive_expiry=KEEP_ALIVE_SECONDS, network_backend=self._network
            )
        else:
            self._connection = httpcore.HTTPProxy(
                httpcore.URL(scheme="http", host=self._proxy.host, port=self._proxy.port, target="/"),
                proxy_auth=self._proxy.credentials,
                ssl_context=context,
                keepalive_expiry=KEEP_ALIVE_SECONDS,
                network_backend=self._network,
            ).create_connection(origin)
        return self._connection

    def _read(self, answer: httpcore.Response) -> Response:
        """What the receiver said. It has said it with the status: what goes wrong from then on changes nothing."""
        self._deadline.shorten(response.BODY_SECONDS)
        body = bytearray()
        with contextlib.closing(answer), contextlib.suppress(OSError, httpcore.RemoteProtocolError, LimitExceeded):
            for number, piece in enumerate(answer.iter_stream(), 1):
                body += piece
                if len(body) >= response.BODY_BYTES or number >= BODY_PIECES:
                    break
        if _is_followed_by_more(answer):
            self.close()
        return response.read(answer.status, answer.extensions.get("reason_phrase", b""), answer.headers, bytes(body))

    def _explain(self, error: Exception) -> str:
        doing = self._deadline.doing
        match error:
            case ssl.SSLCertVerificationError():
                return f"the receiver's certificate was not accepted: {error.verify_message}"
            case httpcore.ProxyError():
                return f"the proxy answered {error}"
            case OSError():
                return f"{error if error.strerror is None else error.strerror} while {doing}"
            case _:
                return f"no HTTP answer: {error}"


@cache
def default_ssl_context() -> ssl.SSLContext:
    """One for all: to read the certificate authorities takes longer than many requests."""
    return httpx.create_ssl_context()


def _is_followed_by_more(answer: httpcore.Response) -> bool:
    """Whether more has come than the answer: it would be taken for the next one's, which had not even been sent.

    httpcore shows this nowhere; where it can't be found any more, connections are not kept, and a test says so.
    """
    connection = getattr(answer.stream, "_connection", None)
    received = getattr(connection, "_h11_state", None)
    return received is None or received.trailing_data[0] != b""
