"""Decide what a receiver's response means for the event: it is delivered, is tried again, or has failed.

| response | outcome |
|---|---|
| 2xx | Delivered |
| a status in `fail_on` | Failed |
| a status in `unavailable_on` | Unavailable: costs no attempt |
| any other status, redirects included | Retry: costs an attempt |
| no response (`NoResponse`) | Unavailable |
| the request was not sent (`NotSent`) | Retry |

`Retry-After` sets the time of the next try. `Webhook` calls `ResponsePolicy.outcome` for each result of its transport.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import datetime
from http import HTTPStatus
from typing import assert_never
from urllib.parse import urlsplit

from outbox.destinations.outcome import DELIVERED_OUTCOME, Failed, Outcome, Retry
from outbox.errors import RegistrationError, Unavailable
from outbox.events.event import Event
from outbox.text import one_line, printable
from outbox.webhooks.redaction import (
    HIDDEN,
    Redaction,
    hide_values,
    texts_in,
    without_json_escapes,
)
from outbox.webhooks.retry_after import parse_retry_after
from outbox.webhooks.transport.protocol import NoResponse, NotSent, Response, SendResult

EXCERPT_LENGTH = 200
REASON_LENGTH = 60
# How much of a text is searched for the event's values: more than is shown, because replacing shortens the text.
SEARCHED_LENGTH = 1_000
# A signature that the receiver repeats. For some minutes, an attacker could send the request again with it.
_SIGNATURE = re.compile(r"v1,[A-Za-z0-9+/=]{20,}")
# Plain numbers: comparing an HTTPStatus takes longer, and this is done for every event.
_OK, _REDIRECTS = HTTPStatus.OK.value, HTTPStatus.MULTIPLE_CHOICES.value


class ResponsePolicy:
    """The rules of one webhook: which statuses are final, and which mean that the receiver is unavailable."""

    def __init__(
        self, unavailable_on: Collection[int], fail_on: Collection[int], redaction: Redaction, *, with_excerpt: object
    ) -> None:
        if not isinstance(with_excerpt, bool):
            raise RegistrationError(f"response_excerpt must be True or False, not {with_excerpt!r}.")
        self._with_excerpt = with_excerpt
        self._unavailable_on = _statuses("unavailable_on", unavailable_on)
        self._fail_on = _statuses("fail_on", fail_on)
        self._redaction = redaction
        both = sorted(self._unavailable_on & self._fail_on)
        if both:
            raise RegistrationError(f"{both[0]} is in unavailable_on and in fail_on: it can mean only one of them.")

    def outcome(self, event: Event, result: SendResult, clock: Callable[[], datetime]) -> Outcome:
        """Return the event's outcome. `clock` returns the database's time, to compare a Retry-After date with."""
        match result:
            case Response():
                return self._outcome_of_response(event, result, clock)
            case NoResponse(error, detail):
                return Unavailable(self._clean(event, f"{error}: {detail}" if detail and self._with_excerpt else error))
            case NotSent(error):
                return Retry(self._clean(event, error))
            case _:
                assert_never(result)

    def _outcome_of_response(self, event: Event, response: Response, clock: Callable[[], datetime]) -> Outcome:
        status = response.status
        if _OK <= status < _REDIRECTS:
            return DELIVERED_OUTCOME
        error = self._error(event, response)
        if status in self._fail_on:
            return Failed(error, http_status=status)
        wait = parse_retry_after(response.headers.get("retry-after"), response.headers.get("date"), clock())
        if status in self._unavailable_on:
            return Unavailable(error, not_before=wait, http_status=status)
        return Retry(error, wait, http_status=status)

    def _error(self, event: Event, response: Response) -> str:
        """Return a line such as `HTTP 500 Internal Server Error: the beginning of the body`."""
        reason = response.reason if self._with_excerpt else _standard_reason(response.status)
        status_line = f"HTTP {response.status} {self._clean(event, reason, REASON_LENGTH)}".rstrip()
        if _REDIRECTS <= response.status < HTTPStatus.BAD_REQUEST:
            return f"{status_line}: redirects are not followed{self._where_to(event, response)}"
        excerpt = self._clean(event, response.excerpt) if self._with_excerpt else ""
        return f"{status_line}: {excerpt}" if excerpt else status_line

    def _where_to(self, event: Event, response: Response) -> str:
        """Return the end of a sentence that says which host a redirect leads to."""
        if not self._with_excerpt:
            return ""
        return f"; this one leads to {self._clean(event, _host_of_redirect(response.headers.get('location', '')))}"

    def _clean(self, event: Event, text: str, most: int = EXCERPT_LENGTH) -> str:
        """Return a text from the receiver as one printable line of at most `most` characters.

        Secrets, and what the event's payload and headers contain, are replaced before the line is cut, because half of
        them would not be recognised. Parts of secrets are replaced, too.
        """
        if not text:
            return ""
        text = one_line(without_json_escapes(text))
        known = _SIGNATURE.sub(HIDDEN, self._redaction.redact(text, SEARCHED_LENGTH))
        values = (*self._redaction.texts, *texts_in(event.payload), *texts_in(event.headers))
        cleaned = hide_values(known, values, is_cut=len(text) > SEARCHED_LENGTH)
        return printable(cleaned[:most])


def _standard_reason(status: int) -> str:
    """Return the usual reason phrase of a status; "" if it has none."""
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else ""


def _statuses(name: str, statuses: object) -> frozenset[int]:
    if isinstance(statuses, Collection) and all(_is_status(status) for status in statuses):
        return frozenset(statuses)
    raise RegistrationError(f"{name} must be statuses from 300 to 599, such as (429, 503), not {statuses!r}.")


def _is_status(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 300 <= value <= 599  # noqa: PLR2004  (3xx to 5xx)


def _host_of_redirect(location: str) -> str:
    """Return the host of a Location header, or a description. Path and query are left out: they may hold secrets."""
    try:
        host = urlsplit(location.strip()).hostname
    except ValueError:
        return "a location that can't be parsed"
    return "the same host" if host is None else host
