"""The application's actors: `dramatiq tests.apps.shop.tasks`."""

import os
from collections import Counter

import dramatiq

from tests.apps.shop.broker import Record

# Retries of a message may run in any thread of the one process, and in no other.
tries: Counter[str] = Counter()


@dramatiq.actor(store_results=True)
def price(order: int) -> int:
    Record.create(what=f"priced {order}")
    return order * 100


@dramatiq.actor(store_results=True)
def tax(cents: int) -> int:
    Record.create(what=f"taxed {cents}")
    return cents * 2


@dramatiq.actor
def celebrate(what: str) -> None:
    Record.create(what=f"celebrated {what}")


@dramatiq.actor(max_retries=5, min_backoff=10, max_backoff=20)
def flaky(order: int, failures: int) -> None:
    """Write, and send a message, in each attempt: only those of the attempt that succeeds are to be seen."""
    name = f"flaky {order}"
    tries[name] += 1
    Record.create(what=f"{name} in attempt {tries[name]}")
    celebrate.send(f"{name} in attempt {tries[name]}")
    if tries[name] <= failures:
        os.write(1, f"failing {name}\n".encode())
        raise ZeroDivisionError(name)
