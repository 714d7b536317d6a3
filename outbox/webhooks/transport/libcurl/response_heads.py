"""Read the heads of a response from the lines that libcurl hands over, each line once."""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

from outbox.webhooks.transport.response_limits import HEAD_BYTES, MOST_INTERIM, LimitExceeded, check_heads

# As numbers, which are compared many times a second.
_OK, _REDIRECTS = HTTPStatus.OK.value, HTTPStatus.MULTIPLE_CHOICES.value


class ResponseHead(NamedTuple):
    """The head of a response that is not an interim one."""

    status: int
    reason: bytes
    headers: list[tuple[bytes, bytes]]

    @property
    def is_good(self) -> bool:
        return is_good(self.status)


class ResponseHeads:
    """The heads that have come so far. libcurl adds to `lines`."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._final: list[ResponseHead] = []
        self._current: list[bytes] = []
        self.clear(through_tunnel=False)

    def clear(self, *, through_tunnel: bool) -> None:
        """Start anew. Through a tunnel, the first response is the proxy's."""
        self.lines.clear()
        self._final.clear()
        self._current.clear()
        self._through_tunnel = through_tunnel
        self.excess: str | None = None
        self._read = self._filled = self._size = self._interim = 0

    @property
    def are_short(self) -> bool:
        """Return whether all limits are kept, without reading anything: the usual case."""
        return len(self.lines) <= MOST_INTERIM and sum(map(len, self.lines)) <= HEAD_BYTES

    @property
    def of_tunnel(self) -> ResponseHead | None:
        """Return the head of the proxy's response to CONNECT, or None if there is no tunnel."""
        return self._final[0] if self._through_tunnel and self._final else None

    @property
    def answer(self) -> ResponseHead | None:
        """Return the head of the receiver's response, or None if it is not complete."""
        index = int(self._through_tunnel)
        return self._final[index] if len(self._final) > index else None

    def read(self) -> None:
        """Read the new lines, up to the receiver's response; `excess` says if there are too many until then."""
        try:
            for line in self.lines[self._read :]:
                if self.answer is not None or self.excess is not None:
                    return  # what follows an answer are trailers
                self._read += 1
                self._add(line)
                check_heads(interim=self._interim, lines=self._filled, size=self._size)
        except LimitExceeded as error:
            self.excess = str(error)

    def _add(self, line: bytes) -> None:
        self._size += len(line)
        stripped = line.rstrip(b"\r\n")
        if stripped:
            self._filled += 1
            self._current.append(stripped)
        else:
            self._end()

    def _end(self) -> None:
        head = _parse(self._current)
        self._current.clear()
        if head is None:
            return
        if head.status >= _OK:
            self._final.append(head)
        else:
            self._interim += 1


def is_good(status: int) -> bool:
    return _OK <= status < _REDIRECTS


def _parse(lines: list[bytes]) -> ResponseHead | None:
    _, _, rest = lines[0].partition(b" ") if lines else (b"", b"", b"")
    status, _, reason = rest.lstrip().partition(b" ")
    if not status.isdigit():
        return None
    pairs = (line.partition(b":") for line in lines[1:])
    return ResponseHead(int(status), reason.strip(), [(name, value.strip()) for name, _, value in pairs])
