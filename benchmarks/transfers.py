"""The fastest loop over libcurl: `python -m benchmarks.transfers ADDRESS COUNT AT_ONCE` says posts/s.

Its multi interface in one thread, as our transport has it; bodies of the same size, signed as ours are; nothing is
looked at but the status.
"""

from __future__ import annotations

import json
import sys
import time

import pycurl

from benchmarks.hook import SECRET
from benchmarks.site import EVENT_TYPE, PAYLOAD
from outbox.storage.ids import uuid7
from outbox.webhooks.signature import SigningKey

NO_CONTENT = 204
PATIENCE_SECONDS = 1.0
HEAD = {"type": EVENT_TYPE, "aggregate_type": "Order", "aggregate_id": "1", "time": "2026-01-01T00:00:00.000000"}


def prepared(address: str) -> pycurl.Curl:
    handle = pycurl.Curl()
    handle.setopt(pycurl.URL, address)
    handle.setopt(pycurl.POST, 1)
    handle.setopt(pycurl.WRITEFUNCTION, len)
    return handle


def write(handle: pycurl.Curl, key: SigningKey) -> None:
    id = str(uuid7())
    body = json.dumps({"id": id, **HEAD, "data": PAYLOAD}).encode()
    timestamp = str(int(time.time()))
    signature = key.sign(id.encode(), timestamp.encode(), body).decode()
    headers = [
        "content-type: application/json",
        f"webhook-id: {id}",
        f"webhook-timestamp: {timestamp}",
        f"webhook-signature: {signature}",
    ]
    handle.setopt(pycurl.HTTPHEADER, headers)
    handle.setopt(pycurl.POSTFIELDS, body)


def post(address: str, count: int, at_once: int) -> None:
    key = SigningKey(SECRET)
    multi = pycurl.CurlMulti()
    idle = [prepared(address) for _ in range(at_once)]
    begun = under_way = 0
    while begun < count or under_way:
        while idle and begun < count:
            handle = idle.pop()
            write(handle, key)
            multi.add_handle(handle)
            begun += 1
            under_way += 1
        multi.perform()
        _, done, failed = multi.info_read()
        if failed:
            raise RuntimeError(f"the receiver can't be reached: {failed[0][2]}")
        for handle in done:
            if handle.getinfo(pycurl.RESPONSE_CODE) != NO_CONTENT:
                raise RuntimeError("the receiver does not answer 204")
            multi.remove_handle(handle)
            idle.append(handle)
            under_way -= 1
        if not done:
            multi.select(PATIENCE_SECONDS)


def main(address: str, count: int, at_once: int) -> None:
    began_at = time.perf_counter()
    post(address, count, at_once)
    print(count / (time.perf_counter() - began_at))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
