"""The fastest loop over httpcore's connections: `python -m benchmarks.posts ADDRESS COUNT THREADS` says posts/s.

A connection for each thread, as our transport has it; bodies of the same size, signed as ours are; nothing is looked at
but the status.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from urllib.parse import urlsplit

import httpcore

from benchmarks.hook import SECRET
from benchmarks.site import EVENT_TYPE, PAYLOAD
from outbox.storage.ids import uuid7
from outbox.webhooks.signature import SigningKey

NO_CONTENT = 204


def post(address: str, count: int) -> None:
    parts = urlsplit(address)
    assert parts.hostname is not None  # noqa: S101  (for the type checker)
    url = httpcore.URL(scheme=b"http", host=parts.hostname.encode(), port=parts.port, target=b"/")
    key, authority = SigningKey(SECRET), parts.netloc.encode()
    head = {"type": EVENT_TYPE, "aggregate_type": "Order", "aggregate_id": "1", "time": "2026-01-01T00:00:00.000000"}
    with httpcore.HTTPConnection(url.origin) as connection:
        for _ in range(count):
            id = str(uuid7())
            body = json.dumps({"id": id, **head, "data": PAYLOAD}).encode()
            timestamp = str(int(time.time())).encode()
            headers = [
                (b"host", authority),
                (b"content-type", b"application/json"),
                (b"webhook-id", id.encode()),
                (b"webhook-timestamp", timestamp),
                (b"webhook-signature", key.sign(id.encode(), timestamp, body)),
                (b"content-length", str(len(body)).encode()),
            ]
            response = connection.handle_request(httpcore.Request(b"POST", url, headers=headers, content=body))
            if response.status != NO_CONTENT:
                raise RuntimeError(f"the receiver answers {response.status}")
            response.read()
            response.close()


def main(address: str, count: int, threads: int) -> None:
    posting = [threading.Thread(target=post, args=(address, count // threads)) for _ in range(threads)]
    began_at = time.perf_counter()
    for thread in posting:
        thread.start()
    for thread in posting:
        thread.join()
    print(count // threads * threads / (time.perf_counter() - began_at))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
