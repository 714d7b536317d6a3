"""Web applications of the examples and the tests, served by real processes on loopback."""

import http.client
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any

import psycopg
from psycopg import sql

from tests.conftest import is_postgres
from tests.support.processes import Program, Stage
from tests.support.receiver import LOOPBACK
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import becomes_true, sessions_waiting


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


def at_the_same_moment(count: int, call: Callable[[], Any], *, url: str, table: str) -> list[Any]:
    """Call it in so many threads. On PostgreSQL none gets to write to the table before all have got as far as they can;
    on SQLite they are released together.
    """
    barrier = Barrier(count, timeout=PATIENCE_SECONDS)

    def run(_: int) -> Any:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(count) as threads, _held_up(url, table) as all_wait:
        answers = [threads.submit(run, number) for number in range(count)]
        all_wait(count)
    return [answer.result(PATIENCE_SECONDS) for answer in answers]


@contextmanager
def _held_up(url: str, table: str) -> Iterator[Callable[[int], None]]:
    if not is_postgres(url):
        yield lambda count: None
        return
    with psycopg.connect(url) as connection:
        connection.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(sql.Identifier(table)))
        yield lambda count: becomes_true(lambda: sessions_waiting(url) == count)
