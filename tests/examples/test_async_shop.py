"""The FastAPI example under load, with a server that is killed: orders and events that are committed are the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import psycopg

from tests.support.processes import ROOT
from tests.support.servers import PATIENCE_SECONDS, Postgres, free_port, wait_until

ORDERS = 150
# Every fifth order is refused after its event was emitted.
REFUSED = range(0, ORDERS, 5)
AT_ONCE = 12
KILLED_AFTER = 40

DELIVER = """
import outbox, examples.async_shop.handlers
while outbox.process_pending_events()["processed"]:
    pass
"""


@contextmanager
def server(port: int, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run the application with uvicorn until the block ends."""
    command = [sys.executable, "-m", "uvicorn", "examples.async_shop.app:app", "--port", str(port)]
    command += ["--log-level", "warning"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        assert wait_until(lambda: responds(port))
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def responds(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/docs").status_code == 200
    except httpx.TransportError:
        return False


def test_every_committed_order_has_its_event_and_no_rolled_back_one_has(postgres_server: Postgres) -> None:
    url = postgres_server.create_database("async_shop")
    environment = os.environ | {"SHOP_DATABASE": url, "OUTBOX_DISPATCH": "off", "OUTBOX_PUBLISH_SECONDS": "0"}
    port = free_port()
    responses: dict[int, int] = {}

    def place(number: int) -> None:
        total = 2_000 if number in REFUSED else 20
        try:
            posted = client.post(f"http://127.0.0.1:{port}/orders", json={"number": number, "total": total})
            responses[number] = posted.status_code
        except httpx.TransportError:
            pass  # the server was killed: the order was placed or was not

    with httpx.Client(timeout=PATIENCE_SECONDS) as client, ThreadPoolExecutor(AT_ONCE) as pool:
        with server(port, environment) as process:
            first = [pool.submit(place, number) for number in range(ORDERS // 2)]
            assert wait_until(lambda: len(responses) >= KILLED_AFTER)
            process.send_signal(signal.SIGKILL)
            for each in first:
                each.result()
        with server(port, environment):
            list(pool.map(place, range(ORDERS // 2, ORDERS)))

    orders, events = numbers(url, "SELECT number FROM shop_order"), placed(url)
    assert events == orders
    assert {number for number, status in responses.items() if status == 201} <= orders
    assert orders.isdisjoint(REFUSED)
    assert {responses[number] for number in REFUSED if number in responses} == {402}
    assert len(responses) >= KILLED_AFTER + ORDERS // 2

    # A worker's process awaits the handler, which emits in a transaction of its own.
    subprocess.run([sys.executable, "-c", DELIVER], cwd=ROOT, env=environment, check=True, timeout=60)
    assert numbers(url, "SELECT aggregate_id FROM outbox_event WHERE event_type = 'order.confirmed'") == orders


def placed(url: str) -> set[int]:
    return numbers(url, "SELECT aggregate_id FROM outbox_event WHERE event_type = 'order.placed'")


def numbers(url: str, query: str) -> set[int]:
    with psycopg.connect(url) as connection:
        return {int(number) for (number,) in connection.execute(query.encode())}
