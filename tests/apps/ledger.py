"""Handlers for real workers: every call is entered into a ledger file, and the payload says how it goes on.

{"do": "pass"}                           returns
{"do": "wait", "gate": path}             returns when the file exists; raises if `path + ".bad"` does, too
{"do": "fail", "times": n}               raises the first n times
{"do": "work", "seconds": s}             returns after a while
{"do": "abort"}                          ends the worker process without ado
{"do": "hang"}                           never returns
{"do": "block", "dam": path}             reads a file, which may be a pipe: waits where no exception reaches it
{"do": "raise", "what": name}            raises what Python calls so, whatever it is
{"do": "forget"}                         opens a transaction, and returns
{"do": "leak"}                           opens a file, and keeps it
"""

import builtins
import hashlib
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import outbox

LEDGER = "OUTBOX_TEST_LEDGER"
MORE_THAN_A_PIPE_HOLDS = 100_000

# In one write each, so that the lines of many processes don't mix.
_ledger = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def write(what: str, **fields: Any) -> None:
    os.write(_ledger, (json.dumps({"what": what, **fields}) + "\n").encode())


def enter(what: str, event: outbox.Event) -> None:
    body = hashlib.sha256(event.body).hexdigest()
    write(what, id=str(event.id), body=body, attempt=event.attempt, pid=os.getpid())


@outbox.handler("test.*", name="ledger")
def keep(event: outbox.Event) -> None:
    enter("began", event)
    behave(event, event.payload)
    enter("ended", event)


def behave(event: outbox.Event, payload: dict[str, Any]) -> None:
    match payload["do"]:
        case "wait":
            gate = Path(payload["gate"])
            while not gate.exists():
                time.sleep(0.01)
            if gate.with_name(gate.name + ".bad").exists():
                raise ValueError("the gate is bad")
            print("through the gate", "." * MORE_THAN_A_PIPE_HOLDS)  # noqa: T201 - handlers print, and must not hang
        case "fail" if event.attempt <= payload["times"]:
            raise ValueError(f"attempt {event.attempt} fails")
        case "work":
            time.sleep(payload["seconds"])
        case "hang":
            while True:
                time.sleep(0.01)
        case "block":
            Path(payload["dam"]).read_bytes()
        case "abort" | "raise" | "forget" | "leak":
            misbehave(payload)


def misbehave(payload: dict[str, Any]) -> None:
    match payload["do"]:
        case "abort":
            os.abort()
        case "raise":
            raise getattr(builtins, payload["what"])("on purpose")
        case "forget":
            outbox.current().database.begin()
        case "leak":
            os.open(os.devnull, os.O_RDONLY)
