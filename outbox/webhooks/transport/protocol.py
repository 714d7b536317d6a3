"""The interface between a webhook and the HTTP library that sends its requests.

A transport gets many requests and returns a result for each, in any order. It may have several requests in flight at
the same time, with a thread for each connection (`httpcore_threads`) or with one loop over many sockets (`libcurl`).
Users can pass their own transport: `outbox.Webhook(…, transport=…)`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from outbox.webhooks.transport.url import Url

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """A POST. The headers are valid, and the transport adds those of the connection: host, content-length and so on."""

    url: Url
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)
    # The deadline, by time.monotonic(), for everything from resolving the name to the headers of the response.
    ends_at: float


@dataclass(frozen=True, slots=True)
class Response:
    """The receiver has responded. Errors after that, such as a connection lost in the body, don't change the status."""

    status: int
    reason: str = ""
    # The headers that the response policy uses, by their names in lower case.
    headers: Mapping[str, str] = field(default_factory=dict)
    # The beginning of the body, if it is text.
    excerpt: str = ""


@dataclass(frozen=True, slots=True)
class NoResponse:
    """The receiver could not be reached, did not respond in time, or sent something that is not HTTP."""

    error: str
    # What the HTTP library says about what was received. It may quote it, so it is stored only if an excerpt may be.
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NotSent:
    """The transport did not send the request: the address is not allowed, or the library refused the request."""

    error: str


SendResult = Response | NoResponse | NotSent


class Transport(Protocol):
    """Sends a webhook's requests."""

    def exchange(
        self, requests: Iterator[tuple[K, WebhookRequest]], at_once: int
    ) -> Generator[tuple[K, SendResult], None, None]:
        """Send the requests, at most `at_once` in flight, and yield each result with the key of its request.

        Take a request from the iterator only when it can be sent immediately, because taking it marks its event as
        begun. Take it in the thread that iterates over the results. Once the generator is closed, take no more.
        """
        ...

    def close(self) -> None:
        """Close the connections that are kept between exchanges. The transport can still be used afterwards."""
        ...
