"""An application, as a process: `python -m tests.chaos.emitter NAME SEED STOP LEDGER`, until the file STOP exists.

Each transaction leaves a row of the application's own, events, and often jobs. Before it ends, what it holds is in the
ledger; after that, what became of it: committed, rolled back, or unknown, if the connection broke during COMMIT. One
that has no such line, since its emitter was killed, is unknown as well.
"""

import os
import random
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import outbox
from outbox.core import Outbox
from outbox.events.encoding import encode_object
from tests.chaos.destinations import ARCHIVED, EVERYWHERE, HANDLED, JOB, POSTED, PUBLISHED, RABBITMQ, STREAMED
from tests.chaos.ledger import Ledger, digest

COMMITTED, ROLLED_BACK, UNKNOWN = "committed", "rolled back", "unknown"

PAUSE_SECONDS = 0.02
WORK_SECONDS = 0.02
UNDONE = 0.15  # of all transactions, and of all that have a savepoint
JOBS = 0.5  # of all transactions
ORDERED = 0.5  # of all events
ORDERING_KEYS = tuple(f"key {number}" for number in range(5))
DEBOUNCE = timedelta(milliseconds=200)
# Deaths of workers cost events attempts, and must not be what fails them.
ATTEMPTS, DOOMED_ATTEMPTS = 100, 2
KINDS = [*[HANDLED] * 6, STREAMED, STREAMED, POSTED, EVERYWHERE, ARCHIVED]
KINDS += [PUBLISHED] * 3 if RABBITMQ in os.environ else []
DEEDS = ("pass",) * 12 + ("work",) * 4 + ("fail",) * 3 + ("doom",)


class Undo(Exception):
    """This is not to happen."""


class Emitter:
    def __init__(self, name: str, chance: random.Random, ledger: Ledger) -> None:
        self._name, self._chance, self._ledger = name, chance, ledger
        self._number = 0
        self._good_at = time.time()

    def transact(self) -> None:
        """One transaction, and what became of it."""
        self._number += 1
        transaction = f"{self._name}-{self._number}"
        box = outbox.current()
        sent = False
        try:
            with box.dialect.connection(), box.database.atomic():
                events = self._emit_some(transaction)
                self._ledger.write("intended", transaction=transaction, events=events)
                self._undo_some()
                sent = True  # from here on it is COMMIT that fails
            fate = COMMITTED
        except Undo:
            fate = ROLLED_BACK
        except Exception as error:
            fate = UNKNOWN if sent else ROLLED_BACK
            self._ledger.write("error", kind=type(error).__name__, text=str(error), good_at=self._good_at)
            box.dialect.discard_connection()
        else:
            self._good_at = time.time()
        self._ledger.write("ended", transaction=transaction, fate=fate)

    def _emit_some(self, transaction: str) -> list[dict[str, Any]]:
        database = outbox.current().database
        database.execute_sql("INSERT INTO chaos_note (transaction) VALUES (%s)", (transaction,))
        # All emitters share the keys, and `"strict"` makes them take turns: one key a transaction, so that none
        # waits for another that waits for it.
        key = self._chance.choice(ORDERING_KEYS)
        events = [self._emit(key, kept=True) for _ in range(self._chance.choice((1, 1, 2, 3)))]
        if self._chance.random() < UNDONE:
            with database.savepoint() as savepoint:
                events += [self._emit(key, kept=False), self._send(kept=False)]
                savepoint.rollback()
        if self._chance.random() < JOBS:
            events += self._send_some(transaction)
        return events

    def _send_some(self, transaction: str) -> list[dict[str, Any]]:
        """A job, in one of the ways in which the application sends, replaces and cancels them."""
        match self._chance.choice(("send", "actor.send", "debounce", "replace", "cancel")):
            case "debounce":  # it takes the place of the one before, if that still waits
                return [self._send(key=f"debounced by {self._name}", delay=DEBOUNCE)]
            case "replace":
                return [self._send(key=transaction, kept=False), self._send(key=transaction)]
            case "cancel":
                job = self._send(kept=False)
                if not outbox.cancel(job["id"]):
                    raise RuntimeError(f"{job['id']} can't be cancelled in its own transaction")
                return [job]
            case how:
                return [self._send(plainly=how == "actor.send")]

    def _send(
        self, *, kept: bool = True, key: str | None = None, delay: timedelta | None = None, plainly: bool = False
    ) -> dict[str, Any]:
        from tests.chaos.jobs import digest_of, run_job  # the run itself, which imports this module, has no such broker

        token = self._chance.randbytes(8).hex()
        if plainly:
            message = run_job.send(token)
        else:
            options: dict[str, Any] = {"idempotency_key": key, "delay": delay, "on_duplicate": "replace"}
            message = outbox.send_with_options(run_job, args=(token,), **options)
        return {"id": message.message_id, "kind": JOB, "payload": digest_of(token), "kept": kept, "key": key}

    def _undo_some(self) -> None:
        if self._chance.random() < UNDONE:
            raise Undo

    def _emit(self, key: str, *, kept: bool) -> dict[str, Any]:
        kind = self._chance.choice(KINDS)
        deed = self._chance.choice(DEEDS) if kind == HANDLED else "pass"
        ordering_key = key if self._chance.random() < ORDERED else None
        if ordering_key is not None and deed == "doom":
            deed = "fail"  # the events behind one that failed for good would wait until an operator comes
        payload: dict[str, Any] = {"do": deed, "token": self._chance.randbytes(8).hex(), "text": "Grüße 🦊"}
        if deed == "work":
            payload["seconds"] = WORK_SECONDS
        return emit(outbox.current(), kind, payload, kept=kept, ordering_key=ordering_key)


def emit(
    box: Outbox, kind: str, payload: dict[str, Any], *, kept: bool = True, ordering_key: str | None = None
) -> dict[str, Any]:
    """Emit it; the ledger's words for it."""
    doomed = payload["do"] == "doom"
    event = box.emit(
        "Thing",
        1,
        kind,
        payload,
        idempotency_key=outbox.UNIQUE,
        max_attempts=DOOMED_ATTEMPTS if doomed else ATTEMPTS,
        ordering_key=ordering_key,
        ordered=False if ordering_key is None else "strict",
    )
    body = digest(encode_object(payload, "payload", 10_000).encode())
    said = {"id": str(event.id), "kind": kind, "payload": body, "kept": kept, "doomed": doomed}
    return said | {"ordering_key": ordering_key, "seq": event.seq}


def main(name: str, seed: str, stop: str, ledger: str) -> None:
    emitter = Emitter(name, random.Random(seed), Ledger(ledger))  # noqa: S311 - nothing secret
    print("emitting", flush=True)  # noqa: T201 - to whoever waits for it
    while not Path(stop).exists():
        emitter.transact()
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
