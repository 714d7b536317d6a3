"""The fastest loop over libcurl: `python -m benchmarks.transfers ADDRESS COUNT AT_ONCE` says posts/s.

Its multi interface in one thread, as our transport has it; bodies of the same size, signed as ours are; nothing is
looked at but the status.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator

import pycurl

from benchmarks.hook import SECRET
from benchmarks.site import EVENT_TYPE, PAYLOAD
from outbox.storage.ids import uuid7
from outbox.webhooks.signature import SigningKey

NO_CONTENT = 204
PATIENCE_SECONDS = 1.0
HEAD = {"type": EVENT_TYPE, "aggregate_type": "Order", "aggregate_id": "1", "time": "2026-01-01T00:00:00.000000"}


class Transfers:
    """A multi handle with so many connections to one address."""

    def __init__(self, address: str, at_once: int) -> None:
        self._key = SigningKey(SECRET)
        self._multi = pycurl.CurlMulti()
        self._idle = [prepared(address) for _ in range(at_once)]

    def post(self, events: Iterable[tuple[str, bytes]]) -> None:
        """Post all of them, each with its id and its body."""
        rest = iter(events)
        under_way, has_more = 0, True
        while has_more or under_way:
            while has_more and self._idle:
                event = next(rest, None)
                if event is None:
                    has_more = False
                    break
                handle = self._idle.pop()
                self._write(handle, *event)
                self._multi.add_handle(handle)
                under_way += 1
            self._multi.perform()
            _, done, failed = self._multi.info_read()
            if failed:
                raise RuntimeError(f"the receiver can't be reached: {failed[0][2]}")
            for handle in done:
                if handle.getinfo(pycurl.RESPONSE_CODE) != NO_CONTENT:
                    raise RuntimeError("the receiver does not answer 204")
                self._multi.remove_handle(handle)
                self._idle.append(handle)
                under_way -= 1
            if under_way and not done:
                self._multi.select(PATIENCE_SECONDS)

    def _write(self, handle: pycurl.Curl, id: str, body: bytes) -> None:
        timestamp = str(int(time.time()))
        signature = self._key.sign(id.encode(), timestamp.encode(), body).decode()
        headers = [
            "content-type: application/json",
            f"webhook-id: {id}",
            f"webhook-timestamp: {timestamp}",
            f"webhook-signature: {signature}",
        ]
        handle.setopt(pycurl.HTTPHEADER, headers)
        handle.setopt(pycurl.POSTFIELDS, body)


def prepared(address: str) -> pycurl.Curl:
    handle = pycurl.Curl()
    handle.setopt(pycurl.URL, address)
    handle.setopt(pycurl.POST, 1)
    handle.setopt(pycurl.WRITEFUNCTION, len)
    return handle


def made(count: int) -> Iterator[tuple[str, bytes]]:
    for _ in range(count):
        id = str(uuid7())
        yield id, json.dumps({"id": id, **HEAD, "data": PAYLOAD}).encode()


def main(address: str, count: int, at_once: int) -> None:
    began_at = time.perf_counter()
    Transfers(address, at_once).post(made(count))
    print(count / (time.perf_counter() - began_at))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
