"""Signed webhooks to a receiver on this machine, beside bare loops over the same HTTP client.

Over httpx, with a receiver that answers at once, one connection may well be faster than eight: threads share an
interpreter. The target is about whichever is. These loops have no database.

Over libcurl the loop claims and settles, too, since that is a large part of the work: in one thread with eight
connections, or in two with four each; the target is about the faster. The loop without a database shows what the rest
costs.

The receiver is not the limit: it takes half the processor time of the fastest of these loops.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import bare as loops
from benchmarks.ground import Ground
from benchmarks.hook import AT_ONCE, CLIENT, RECEIVER
from benchmarks.row import OURS, Row, Sample, at_least
from outbox.settings import Settings
from outbox.webhooks.option_checks import CURL, HTTPX

EIGHT, ONE = f"bare loop, {AT_ONCE} connections", "bare loop, 1 connection"
THREADS = {EIGHT: AT_ONCE, ONE: 1}
MULTI = f"bare loop over libcurl without a database, {AT_ONCE} connections"
CLAIMING = {threads: f"bare loop of claim, libcurl and settle, {threads} at a time" for threads in (1, 2)}
ROW = Row(f"webhooks, signed, {AT_ONCE} at once, one worker process", "events/s", at_least(0.8, EIGHT, ONE))
CURL_TITLE = f"webhooks over libcurl, signed, {AT_ONCE} at once, one worker process"
CURL_ROW = Row(CURL_TITLE, "events/s", at_least(0.6, *CLAIMING.values()))
CURL_RATE = Row(f"{CURL_TITLE}: the rate", "events/s", at_least(20_000))


def measure(ground: Ground) -> Iterator[Sample]:
    with receiver() as address:
        for side in ground.in_turn(OURS, EIGHT, ONE):
            value = ours(ground, address, HTTPX) if side == OURS else bare(ground, "posts", address, THREADS[side])
            yield Sample(ROW, side, value)
        yield Sample(CURL_ROW, MULTI, bare(ground, "transfers", address, AT_ONCE, ground.size.transfers))
        for side in ground.in_turn(OURS, *CLAIMING.values()):
            if side == OURS:
                value = ours(ground, address, CURL, ground.size.transfers)
                yield Sample(CURL_RATE, side, value)
            else:
                threads = next(threads for threads, title in CLAIMING.items() if title == side)
                value = claiming(ground, address, threads)
            yield Sample(CURL_ROW, side, value)


def ours(ground: Ground, address: str, client: str, count: int | None = None) -> float:
    variables = {RECEIVER: address, CLIENT: client}
    with ground.site() as site, site.worker("benchmarks.hook", variables=variables):
        site.warm_up()
        site.fill(ground.size.webhooks if count is None else count)
        site.wake()
        site.wait_until_drained()
        return site.delivered_per_second()


def claiming(ground: Ground, address: str, threads: int) -> float:
    with ground.site() as site:
        with loops.loops(1, site.url, Settings().batch_size, threads, loops.WEBHOOKS, address):
            site.fill(ground.size.transfers)
        return site.delivered_per_second()


def bare(ground: Ground, loop: str, address: str, at_once: int, count: int | None = None) -> float:
    count = ground.size.webhooks if count is None else count
    command = [sys.executable, "-m", f"benchmarks.{loop}", address, str(count), str(at_once)]
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
