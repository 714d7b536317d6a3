"""How requests reach a receiver: the interface that a webhook needs, and nothing of HTTP libraries.

A transport is handed many requests and gives as many answers, in any order. How it has several under way at once -
threads with a connection each, or one loop over many sockets - is its own business.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from outbox.webhooks.transport.url import Url

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """A POST. Names and values of headers are legal, and those that belong to the connection are not among them."""

    url: Url
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)
    # By time.monotonic(): everything from resolving the name to the answer's headers is over by then.
    ends_at: float


@dataclass(frozen=True, slots=True)
class Response:
    """The receiver has answered; what follows of its answer can't change that any more."""

    status: int
    reason: str = ""
    # By their names in lower case.
    headers: Mapping[str, str] = field(default_factory=dict)
    # How its body begins, if that is text.
    excerpt: str = ""


@dataclass(frozen=True, slots=True)
class NoResponse:
    """No answer: nobody there, too late, or nothing that is HTTP."""

    error: str


@dataclass(frozen=True, slots=True)
class NotSent:
    """Not sent, by our own decision: an address that is not allowed, or a request that can't be written."""

    error: str


SendResult = Response | NoResponse | NotSent


class Transport(Protocol):
    """What carries a webhook's requests."""

    def exchange(
        self, requests: Iterator[tuple[K, WebhookRequest]], at_once: int
    ) -> Generator[tuple[K, SendResult], None, None]:
        """An answer for every request that was taken, under the key that it came with.

        A request is taken when it can be sent at once, in the thread that asks for answers: taking it says that its
        event has begun. At most `at_once` are under way. Closing the generator takes no more.
        """
        ...

    def close(self) -> None:
        """Give up what is kept between exchanges; it may be used again."""
        ...
