"""Call a handler in a process of its own, which can be killed, or made to wait, after any of its statements.

The process is forked, so it has the handler of this process, and the stubs that a test has put in place. It reports
over a pipe which statements it has run, and how the call ended. If it has to wait after a statement, it reads from
another pipe before the next statement. A kill is SIGKILL: nothing of the handler runs after it, and the database rolls
back by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self

from outbox.errors import describe
from outbox.testing.proof.trace_drivers import Watch

# What the process of a call runs. It gets the object that is notified of each statement, and a function to report calls
# outside the database. It may return a value that has a JSON form.
Work = Callable[[Watch, Callable[[str], None]], Any]

BUFFER = 65_536
# A statement is reported up to this length, so that writing the report to the pipe does not block.
MOST_CHARACTERS = 1_000
# The exit code if the parent process has ended.
PARENT_ENDED = 70


@dataclass
class CallResult:
    """How a call has ended."""

    # The statements that it has run.
    statements: list[str] = field(default_factory=list)
    # Its calls outside the database.
    outside: list[str] = field(default_factory=list)
    # The error that it has raised, as text, and where.
    error: str | None = None
    trace: str = ""
    has_returned: bool = False
    result: Any = None
    # Whether it did not end in time, and was killed therefore.
    is_late: bool = False
    in_transaction: bool = False


class CallProcess:
    """The process of one call. As a context manager, it ends the process at the end of the block."""

    def __init__(self, work: Work, *, kill_after: int | None = None, wait_after: int | None = None) -> None:
        """`kill_after` and `wait_after` are numbers of statements, from 1."""
        self.outcome = CallResult()
        self.is_waiting = False
        self.has_ended = False
        self._buffer = b""
        self._from_child, to_parent = os.pipe()
        from_parent, self._to_child = os.pipe()
        with warnings.catch_warnings():
            # From Python 3.12 on: threads of this process don't exist in the child, which needs none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            os.close(self._from_child)
            os.close(self._to_child)
            _run_child(work, _Child(to_parent, from_parent, kill_after, wait_after))
        os.close(to_parent)
        os.close(from_parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to_child)
        os.close(self._from_child)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def wait(self, seconds: float) -> None:
        """Wait until the process ends, or waits after a statement; kill it if that takes too long."""
        ends_at = time.monotonic() + seconds
        while not self.has_ended and not self.is_waiting:
            if not self._read(ends_at - time.monotonic()):
                self.outcome.is_late = True
                os.kill(self._pid, signal.SIGKILL)
                return

    def wait_while_busy(self, *, silence_seconds: float) -> bool:
        """Wait until the process ends; return False if it reports nothing for so long: it may wait for a lock."""
        while not self.has_ended:
            if not self._read(silence_seconds):
                return False
        return True

    def go_on(self) -> None:
        """Let the process go on after the statement at which it waits."""
        self.is_waiting = False
        with contextlib.suppress(BrokenPipeError):
            os.write(self._to_child, b"\n")

    def _read(self, seconds: float) -> bool:
        """Read reports of the process; return whether it has reported something in this time, or has ended."""
        ready, _, _ = select.select([self._from_child], [], [], max(0.0, seconds))
        if not ready:
            return False
        read = os.read(self._from_child, BUFFER)
        if not read:
            self.has_ended = True
        *lines, self._buffer = (self._buffer + read).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        return True

    def _take(self, report: dict[str, Any]) -> None:
        outcome = self.outcome
        if "ran" in report:
            outcome.statements.append(report["ran"])
            outcome.in_transaction = report["in_transaction"]
        elif "waits" in report:
            self.is_waiting = True
        elif "outside" in report:
            outcome.outside.append(report["outside"])
        else:
            outcome.has_returned = report["error"] is None
            outcome.error, outcome.trace, outcome.result = report["error"], report["trace"], report.get("result")


class _Child:
    """The child process: it reports to its parent, and kills itself or waits after the given statement."""

    def __init__(self, to_parent: int, from_parent: int, kill_after: int | None, wait_after: int | None) -> None:
        self._to_parent, self._from_parent = to_parent, from_parent
        self._kill_after, self._wait_after = kill_after, wait_after
        self._number = 0

    def begins(self) -> None:
        """Stop between two statements: the rows of the one before are read, and its changes are committed.

        (SQLite ends a statement that returns rows, such as INSERT … RETURNING, when they have been read.)
        """
        if self._number == self._kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._number == self._wait_after:
            self._wait_after = None
            self.report({"waits": True})
            if not os.read(self._from_parent, 1):
                os._exit(PARENT_ENDED)

    def ran(self, statement: str, *, in_transaction: bool) -> None:
        self._number += 1
        self.report({"ran": statement[:MOST_CHARACTERS], "in_transaction": in_transaction})

    def outside(self, what: str) -> None:
        self.report({"outside": what})

    def report(self, message: dict[str, Any]) -> None:
        os.write(self._to_parent, json.dumps(message).encode() + b"\n")


def _run_child(work: Work, child: _Child) -> NoReturn:
    """Run the call, report how it has ended, and end the process without running the exit handlers of its parent."""
    try:
        # Ctrl-C reaches the children as well as the parent: they end at once.
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_DFL)
        try:
            result = work(child, child.outside)
            child.begins()
        except BaseException as error:
            child.report({"error": describe(error) or type(error).__name__, "trace": _trace_of(error)})
        else:
            child.report({"error": None, "trace": "", "result": result})
    finally:
        os._exit(0)


def _trace_of(error: BaseException) -> str:
    """Return where an error was raised: the last lines of code, without values."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}outbox{os.sep}" not in frame.filename] or frames
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""
