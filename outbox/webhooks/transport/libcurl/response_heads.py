"""Parse the heads (status line and headers) of a response from the lines that libcurl delivers.

Several heads may come for one request: the head of the proxy's response, of any number of interim responses (1xx), and
of the final response. Each line is parsed once.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

from outbox.webhooks.transport.response_limits import HEAD_BYTES, MOST_INTERIM, LimitExceeded, check_heads

# Plain numbers: comparing an HTTPStatus takes longer, and this is done for every event.
_OK, _REDIRECTS = HTTPStatus.OK.value, HTTPStatus.MULTIPLE_CHOICES.value


class ResponseHead(NamedTuple):
    """The head of a response that is not an interim one."""

    status: int
    reason: bytes
    headers: list[tuple[bytes, bytes]]


class ResponseHeads:
    """The heads that have come so far for one request. libcurl appends to `lines`."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._final: list[ResponseHead] = []
        self._current: list[bytes] = []
        self.clear(through_tunnel=False)

    def clear(self, *, through_tunnel: bool) -> None:
        """Start again for another request. Through a tunnel, the first response comes from the proxy."""
        self.lines.clear()
        self._final.clear()
        self._current.clear()
        self._through_tunnel = through_tunnel
        # Which limit was exceeded, as a text for the error.
        self.excess: str | None = None
        self._lines_parsed = self._lines_filled = self._size = self._interim = 0

    @property
    def are_short(self) -> bool:
        """Return whether the heads are so short that they exceed no limit. This is fast, because nothing is parsed."""
        return len(self.lines) <= MOST_INTERIM and sum(map(len, self.lines)) <= HEAD_BYTES

    @property
    def of_proxy(self) -> ResponseHead | None:
        """Return the head of the proxy's response to CONNECT, or None if there is no tunnel."""
        return self._final[0] if self._through_tunnel and self._final else None

    @property
    def of_receiver(self) -> ResponseHead | None:
        """Return the head of the receiver's final response, or None if it is not complete yet."""
        index = int(self._through_tunnel)
        return self._final[index] if len(self._final) > index else None

    def parse(self) -> None:
        """Parse the new lines, up to the end of the receiver's final head; set `excess` if a limit is exceeded."""
        try:
            for line in self.lines[self._lines_parsed :]:
                if self.of_receiver is not None or self.excess is not None:
                    return  # the lines after the final head are trailers
                self._lines_parsed += 1
                self._add(line)
                check_heads(interim=self._interim, lines=self._lines_filled, size=self._size)
        except LimitExceeded as error:
            self.excess = str(error)

    def _add(self, line: bytes) -> None:
        self._size += len(line)
        stripped = line.rstrip(b"\r\n")
        if stripped:
            self._lines_filled += 1
            self._current.append(stripped)
        else:
            self._end_head()

    def _end_head(self) -> None:
        head = _parse_head(self._current)
        self._current.clear()
        if head is None:
            return
        if head.status >= _OK:
            self._final.append(head)
        else:
            self._interim += 1


def is_success(status: int) -> bool:
    """Return whether a status is 2xx."""
    return _OK <= status < _REDIRECTS


def _parse_head(lines: list[bytes]) -> ResponseHead | None:
    _, _, rest = lines[0].partition(b" ") if lines else (b"", b"", b"")
    status, _, reason = rest.lstrip().partition(b" ")
    if not status.isdigit():
        return None
    pairs = (line.partition(b":") for line in lines[1:])
    return ResponseHead(int(status), reason.strip(), [(name, value.strip()) for name, _, value in pairs])
