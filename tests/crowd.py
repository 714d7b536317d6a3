"""Several threads that do something at the same moment, each with a connection of its own."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import peewee

T = TypeVar("T")

PATIENCE_SECONDS = 60


def at_once(database: peewee.Database, calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Call each in its own thread, all released together: what each returned or raised."""
    barrier = threading.Barrier(len(calls), timeout=PATIENCE_SECONDS)

    def run(call: Callable[[], T]) -> T | Exception:
        database.connect(reuse_if_open=True)
        barrier.wait()
        try:
            return call()
        except Exception as error:
            return error
        finally:
            database.close()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls, timeout=PATIENCE_SECONDS))


def elsewhere(database: peewee.Database, call: Callable[[], T]) -> T:
    """Call it in another thread, through another connection, and wait for it."""
    (result,) = at_once(database, [call])
    if isinstance(result, Exception):
        raise result
    return result
