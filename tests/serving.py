"""Web applications of the examples and the tests, served by real processes on loopback."""

import http.client
import re
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from tests.processes import Program, Stage
from tests.receiver import LOOPBACK
from tests.servers import PATIENCE_SECONDS


def serve(stage: Stage, server: str, app: str, *, port: int = 0, **environment: str) -> Program:
    """Start an application, and return when it listens: `serve(stage, "flask", "its.module")`, or with "uvicorn"."""
    commands = {"flask": ("--app", app, "run"), "uvicorn": (f"{app}:app",)}
    given = [f"{name}={value}" for name, value in environment.items()]
    command = [sys.executable, "-m", server, *commands[server], "--host", LOOPBACK, "--port", str(port)]
    return stage.start(server, "env", *given, *command, ready="unning on http://")


def port_of(program: Program) -> int:
    found = re.search(r"unning on http://[\d.]+:(\d+)", program.said())
    assert found is not None, program.said()
    return int(found[1])


def post(port: int, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """The answer's status and body."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("POST", path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def at_the_same_moment(count: int, call: Callable[[], Any]) -> list[Any]:
    """Call it in so many threads, all released together."""
    barrier = Barrier(count, timeout=PATIENCE_SECONDS)

    def run(_: int) -> Any:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count), timeout=PATIENCE_SECONDS))
