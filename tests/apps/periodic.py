"""Periodic jobs for real schedulers and workers: every call is entered into the ledger."""

import os

import dramatiq

import outbox
from tests.apps.ledger import write


@outbox.periodic(seconds=1, name="every-second", catch_up="all")
def every_second(run: outbox.Run) -> None:
    write("ran", id=str(run.id), body=run.scheduled_at.isoformat(), attempt=run.attempt, pid=os.getpid())


@outbox.periodic(seconds=2, name="latest", overlap="skip")
def latest(run: outbox.Run) -> None:
    write("ran latest", id=str(run.id), body=run.scheduled_at.isoformat(), attempt=run.attempt, pid=os.getpid())


@outbox.periodic(seconds=1, catch_up="all")
@dramatiq.actor(queue_name="periodic", max_retries=0)
def enqueued() -> None:
    write("enqueued", id="0" * 32, body="", attempt=1, pid=os.getpid())


@outbox.periodic(cron="* * * * *", name="every-minute", catch_up="all")
def every_minute(run: outbox.Run) -> None:
    pass
