"""What a receiver's answer means for its event."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from http import HTTPStatus
from typing import assert_never
from urllib.parse import urlsplit

from outbox.destinations.outcome import DELIVERED_OUTCOME, Failed, Outcome, Retry
from outbox.errors import RegistrationError, Unavailable
from outbox.text import one_line, printable
from outbox.webhooks import retry_after
from outbox.webhooks.redaction import Redaction
from outbox.webhooks.transport.protocol import NoResponse, NotSent, Response, SendResult

EXCERPT_LENGTH = 200
REASON_LENGTH = 60
# As numbers, which are compared many times a second.
_OK, _REDIRECTS = HTTPStatus.OK.value, HTTPStatus.MULTIPLE_CHOICES.value


class ResponsePolicy:
    """From answers to outcomes: 2xx is delivered, some statuses are final, some say that nobody is there."""

    def __init__(self, unavailable_on: Collection[int], fail_on: Collection[int], confidential: Redaction) -> None:
        self._unavailable_on = _statuses("unavailable_on", unavailable_on)
        self._fail_on = _statuses("fail_on", fail_on)
        self._confidential = confidential
        both = sorted(self._unavailable_on & self._fail_on)
        if both:
            raise RegistrationError(f"{both[0]} is in unavailable_on and in fail_on: it can mean only one of them.")

    def outcome(self, answer: SendResult, clock: Callable[[], datetime]) -> Outcome:
        match answer:
            case Response():
                return self._of_response(answer, clock)
            case NoResponse(error):
                return Unavailable(self._shown(error))
            case NotSent(error):
                return Retry(self._shown(error))
            case _:
                assert_never(answer)

    def _of_response(self, response: Response, clock: Callable[[], datetime]) -> Outcome:
        status = response.status
        if _OK <= status < _REDIRECTS:
            return DELIVERED_OUTCOME
        error = self._error(response)
        if status in self._fail_on:
            return Failed(error)
        wait = retry_after.read(response.headers.get("retry-after"), response.headers.get("date"), clock())
        if status in self._unavailable_on:
            return Unavailable(error, not_before=wait)
        return Retry(error, wait)

    def _error(self, response: Response) -> str:
        """`HTTP 500 Internal Server Error: how the body begins`"""
        said = f"HTTP {response.status} {self._shown(response.reason, REASON_LENGTH)}".rstrip()
        if _REDIRECTS <= response.status < HTTPStatus.BAD_REQUEST:
            leads_to = self._shown(_host(response.headers.get("location", "")))
            return f"{said}: redirects are not followed; this one leads to {leads_to}"
        excerpt = self._shown(response.excerpt)
        return f"{said}: {excerpt}" if excerpt else said

    def _shown(self, text: str, most: int = EXCERPT_LENGTH) -> str:
        """Somebody else's text on one line of ours: without what is confidential, and only then cut."""
        return printable(one_line(self._confidential.redact(text))[:most])


def _statuses(name: str, statuses: object) -> frozenset[int]:
    if isinstance(statuses, Collection) and all(_is_status(status) for status in statuses):
        return frozenset(statuses)
    raise RegistrationError(f"{name} must be statuses from 300 to 599, such as (429, 503), not {statuses!r}.")


def _is_status(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 300 <= value <= 599  # noqa: PLR2004  (3xx to 5xx)


def _host(location: str) -> str:
    """Where a redirect leads: its path and query are nobody's business."""
    try:
        host = urlsplit(location.strip()).hostname
    except ValueError:
        return "somewhere unreadable"
    return "the same host" if host is None else host
