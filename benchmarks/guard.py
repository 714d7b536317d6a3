"""Ends a program of ours should the bench be killed before it can do so itself."""

from __future__ import annotations

import subprocess
from typing import Self

from tests.support.servers import GUARD


class Guard:
    """Outlives us by a moment: when the pipe closes, a process that is still there is asked to end."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __enter__(self) -> Self:
        command = ["/bin/sh", "-c", GUARD, "guard", "TERM", "/nonexistent"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._tell(str(self._pid))
        return self

    def __exit__(self, *error: object) -> None:
        """The program has ended: there is nothing to guard."""
        self._tell("")
        self._process.communicate()

    def _tell(self, pids: str) -> None:
        assert self._process.stdin is not None  # noqa: S101  (for the type checker)
        self._process.stdin.write(f"{pids}\n".encode())
        self._process.stdin.flush()
