"""An application with actors of its own beside its handlers; their work is entered into the same ledger."""

import os
import time

import dramatiq

import tests.apps.ledger as handlers


@dramatiq.actor(max_retries=0)
def work(number: int, seconds: float) -> None:
    time.sleep(seconds)
    handlers.write("worked", id=f"{number:032x}", body="", attempt=1, pid=os.getpid())
