"""Send jobs until there are enough: `python -m tests.apps.place_charges NAME NUMBER COMMITTED`.

One transaction in five is rolled back, and one in five rolls back to a savepoint. The numbers whose commit succeeded
are entered into COMMITTED; those that must never run are negative.
"""

import os
import random
import sys

import outbox
from tests.apps.charges import charge, db

name, wanted, committed = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
chance = random.Random(name)  # noqa: S311 - nothing secret
file = os.open(committed, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def send(number: int) -> None:
    """In either way, which must come to the same."""
    if chance.random() < 0.5:
        outbox.send(charge, number)
    else:
        charge.send(number)


print("placing", flush=True)  # noqa: T201 - to whoever waits for it
with db.connection_context():
    for first in range(0, wanted, 5):
        numbers = [name * 1_000_000 + number for number in range(first, min(first + 5, wanted))]
        with db.atomic():
            for number in numbers:
                send(number)
            if chance.random() < 0.2:
                with db.atomic() as savepoint:
                    send(-1)
                    savepoint.rollback()
        os.write(file, "".join(f"{number}\n" for number in numbers).encode())
        if chance.random() < 0.2:
            with db.atomic() as transaction:
                send(-2)
                transaction.rollback()
