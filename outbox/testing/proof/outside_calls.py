"""Record, and by default refuse, what a handler calls outside the database: hosts, programs, mail servers.

Such a call can't be undone and can't be compared, and each handler is called dozens of times. Python reports it by an
audit event before it happens. Audit hooks can't be removed, so this is for the process of one call (`call_process.py`).
Calls of drivers and clients that are written in C and open their sockets themselves are not found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any

from outbox.testing.proof.errors import OutsideCall


def _address(address: Any) -> str:
    match address:
        case (host, port, *_):
            return f"{_text(host)}:{port}"
        case _:
            return _text(address)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


# How each audit event is described, given its arguments.
DESCRIPTIONS: dict[str, Callable[..., str]] = {
    "socket.getaddrinfo": lambda host, port, *_: f"{_text(host)}:{port}",
    "socket.connect": lambda _, address: _address(address),
    "socket.sendto": lambda _, address: _address(address),
    "subprocess.Popen": lambda executable, *_: f"the program {_text(executable)}",
    "os.system": lambda _: "a shell command",
    "os.posix_spawn": lambda path, *_: f"the program {_text(path)}",
    "os.exec": lambda path, *_: f"the program {_text(path)}",
}


class OutsideCalls:
    """The calls of this process outside the copies of the databases."""

    def __init__(self, report: Callable[[str], None], *, allowed: bool, hosts: Collection[str]) -> None:
        """`report` is called with each new description; `hosts` are those of the databases that asyncpg connects to."""
        self._report = report
        self._allowed = allowed
        self._hosts = hosts
        self._seen: set[str] = set()

    def watch(self) -> None:
        """Begin to record calls. This can't be ended."""
        sys.addaudithook(self._audited)

    def refused(self, what: str) -> OutsideCall:
        """Record a call that is always refused; return the exception to raise."""
        self._note(what)
        return OutsideCall(f"A handler that is being proved must not use {what}.")

    def _audited(self, name: str, args: tuple[Any, ...]) -> None:
        describe = DESCRIPTIONS.get(name)
        if describe is None:
            return
        what = describe(*args)
        if any(what in (host, f"{host}:None") or what.startswith(f"{host}:") for host in self._hosts):
            return
        self._note(what)
        if not self._allowed:
            raise OutsideCall(
                f"A handler that is being proved must not call {what}: it would be called many times. Put a stub in "
                "its place, or allow such calls (--allow-calls, allow_calls=True)."
            )

    def _note(self, what: str) -> None:
        if what not in self._seen:
            self._seen.add(what)
            self._report(what)
