"""Signed webhooks to a receiver on this machine, beside bare loops over the same HTTP client without a database.

With a receiver that answers at once, one connection may well be faster than eight: threads share an interpreter. The
target is about whichever is.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.ground import Ground
from benchmarks.hook import AT_ONCE, RECEIVER
from benchmarks.row import OURS, Row, Sample, at_least

EIGHT, ONE = f"bare loop, {AT_ONCE} connections", "bare loop, 1 connection"
THREADS = {EIGHT: AT_ONCE, ONE: 1}
ROW = Row(f"webhooks, signed, {AT_ONCE} at once, one worker process", "events/s", at_least(0.8, EIGHT, ONE))


def measure(ground: Ground) -> Iterator[Sample]:
    with receiver() as address:
        for side in ground.in_turn(OURS, EIGHT, ONE):
            yield Sample(ROW, side, ours(ground, address) if side == OURS else bare(ground, address, THREADS[side]))


def ours(ground: Ground, address: str) -> float:
    with ground.site() as site, site.worker("benchmarks.hook", variables={RECEIVER: address}):
        site.warm_up()
        site.fill(ground.size.webhooks)
        site.wake()
        site.wait_until_drained()
        return site.delivered_per_second()


def bare(ground: Ground, address: str, threads: int) -> float:
    command = [sys.executable, "-m", "benchmarks.posts", address, str(ground.size.webhooks), str(threads)]
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
