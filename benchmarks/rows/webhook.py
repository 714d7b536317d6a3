"""Signed webhooks to a receiver on this machine, beside bare loops over the same HTTP client without a database.

Over httpx, with a receiver that answers at once, one connection may well be faster than eight: threads share an
interpreter. The target is about whichever is. Over libcurl all eight are one thread's.

The receiver is not the limit: it takes half the processor time of the fastest of these loops.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.ground import Ground
from benchmarks.hook import AT_ONCE, CLIENT, RECEIVER
from benchmarks.row import OURS, Row, Sample, at_least
from outbox.webhooks.option_checks import CURL, HTTPX

EIGHT, ONE = f"bare loop, {AT_ONCE} connections", "bare loop, 1 connection"
THREADS = {EIGHT: AT_ONCE, ONE: 1}
MULTI = f"bare loop over libcurl, {AT_ONCE} connections"
ROW = Row(f"webhooks, signed, {AT_ONCE} at once, one worker process", "events/s", at_least(0.8, EIGHT, ONE))
CURL_ROW = Row(
    f"webhooks over libcurl, signed, {AT_ONCE} at once, one worker process", "events/s", at_least(0.8, MULTI)
)


def measure(ground: Ground) -> Iterator[Sample]:
    with receiver() as address:
        for side in ground.in_turn(OURS, EIGHT, ONE):
            value = ours(ground, address, HTTPX) if side == OURS else bare(ground, "posts", address, THREADS[side])
            yield Sample(ROW, side, value)
        for side in ground.in_turn(OURS, MULTI):
            value = ours(ground, address, CURL) if side == OURS else bare(ground, "transfers", address, AT_ONCE)
            yield Sample(CURL_ROW, side, value)


def ours(ground: Ground, address: str, client: str) -> float:
    variables = {RECEIVER: address, CLIENT: client}
    with ground.site() as site, site.worker("benchmarks.hook", variables=variables):
        site.warm_up()
        site.fill(ground.size.webhooks)
        site.wake()
        site.wait_until_drained()
        return site.delivered_per_second()


def bare(ground: Ground, loop: str, address: str, at_once: int) -> float:
    command = [sys.executable, "-m", f"benchmarks.{loop}", address, str(ground.size.webhooks), str(at_once)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@contextmanager
def receiver() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.sink"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None  # noqa: S101  (for the type checker)
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
        finally:
            process.terminate()
