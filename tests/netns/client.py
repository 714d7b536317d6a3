"""`python -m tests.netns.client URL GO`: runs a statement when the file GO exists, and another until that succeeds."""

import sys
import time
from pathlib import Path
from typing import Any

import peewee

from outbox.storage.connect import open_database


def say(what: str) -> None:
    print(what, flush=True)  # noqa: T201 - to the test


def run_statement() -> bool:
    try:
        with database.connection_context():
            database.execute_sql("SELECT 1")
    except peewee.OperationalError:
        database.close_all()
        return False
    return True


database: Any = open_database(sys.argv[1])
database.connect()
database.execute_sql("SELECT 1")
say("connected")
while not Path(sys.argv[2]).exists():
    time.sleep(0.01)
try:
    database.execute_sql("SELECT 1")
except peewee.OperationalError as error:
    say(f"gone: {error}")
database.close_all()
while not run_statement():
    time.sleep(0.1)
say("connected again")
