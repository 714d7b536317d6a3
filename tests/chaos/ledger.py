"""A file of JSON lines in which nothing is lost: each is on disk before its writer goes on."""

import hashlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class Ledger:
    """The writer's side; any number of processes may write to one file."""

    def __init__(self, file: Path | str) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, what: str, **fields: Any) -> None:
        """In one write, so that lines don't mix; `at` is from before it."""
        line = json.dumps({"what": what, "at": time.time(), **fields}) + "\n"
        os.write(self._descriptor, line.encode())
        os.fsync(self._descriptor)


class Reader:
    """The reader's side: what was there before need not be read again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0
        self._lines: list[Line] = []
        self._lock = threading.Lock()

    def lines(self) -> list[Line]:
        """All that are whole so far."""
        with self._lock:
            if self._file.exists():
                with self._file.open("rb") as file:
                    file.seek(self._offset)
                    whole = file.read().rpartition(b"\n")[0]
                if whole:
                    self._offset += len(whole) + 1
                    self._lines += map(json.loads, whole.split(b"\n"))
            return self._lines


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
