"""Let a probe on the same host see that a process is alive: a file that a thread writes every few seconds.

A probe of liveness must depend on nothing but the process: a database or a broker that is down is no reason to restart
all workers. So the heartbeat is a file, and a thread of its own writes it. If the process is stopped, or its
interpreter hangs, the time in the file grows old. If the process has ended, the lock on the file is gone, and the file
is removed.

The time is that of the host's monotonic clock, which all processes of a host share, and which can't be set.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import stat
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from outbox.background_thread import BackgroundThread
from outbox.settings import Settings

logger = logging.getLogger(__name__)

EVERY_SECONDS = 5.0
# A process whose last heartbeat is older than this is not alive.
MAX_AGE_SECONDS = 30.0
# The text in a file always has this length, so that a reader never sees a part of two.
_LENGTH = 120
_SUFFIX = ".alive"


@dataclass(frozen=True, slots=True)
class Beat:
    """The last heartbeat of a process that has not ended."""

    kind: str
    pid: int
    age_seconds: float


def default_directory() -> Path:
    """Return where the heartbeats of this user's processes are, unless OUTBOX_HEALTH_DIRECTORY names another place."""
    return Path(tempfile.gettempdir()) / f"outbox-health-{os.getuid()}"


class Heartbeat:
    """Writes the heartbeat of one process, from `start` to `stop`."""

    def __init__(self, kind: str, directory: Path | None, *, every_seconds: float = EVERY_SECONDS) -> None:
        self._kind = kind
        self._directory = default_directory() if directory is None else directory
        self._every_seconds = every_seconds
        self._file: int | None = None
        self._thread = BackgroundThread("outbox-heartbeat", self._run, after_fork=self._forget)

    def start(self) -> None:
        """Write the first heartbeat, and start the thread for the others. Log a warning if that is not possible."""
        try:
            self._file = self._create()
            self._thread.start()
        except (OSError, RuntimeError) as error:
            logger.warning(
                "Could not write the heartbeat for `outbox health` below %s: %s. Everything else works. If you use "
                "that probe, set OUTBOX_HEALTH_DIRECTORY to a directory that this user may write to.",
                self._directory,
                error,
            )

    def stop(self) -> None:
        """Remove the file, because this process ends."""
        thread = self._thread.tell_to_stop()
        if thread is not None:
            thread.join(self._every_seconds)
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._file)
            self._file = None

    @property
    def _path(self) -> Path:
        return self._directory / f"{self._kind}-{os.getpid()}{_SUFFIX}"

    def _create(self) -> int:
        """Create the file under another name, and rename it when it is locked: a probe removes what has no lock."""
        make_private(self._directory)
        new = self._path.with_suffix(".new")
        new.unlink(missing_ok=True)
        file = os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        # This kind of lock belongs to the process: a child that it forks does not inherit it.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._write(file)
        new.rename(self._path)
        return file

    def _write(self, file: int) -> None:
        text = json.dumps({"kind": self._kind, "pid": os.getpid(), "at": time.monotonic()})
        os.pwrite(file, text.ljust(_LENGTH).encode(), 0)

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._every_seconds):
            with self._thread.fork_lock, contextlib.suppress(OSError):
                if self._file is not None:
                    self._write(self._file)

    def _forget(self) -> None:
        """Forget the file in a forked child: it belongs to the parent."""
        self._file = None


def heartbeat_of(kind: str, settings: Settings) -> Heartbeat:
    """Return the heartbeat of this process, in the directory that the settings name."""
    return Heartbeat(kind, None if settings.health_directory is None else Path(settings.health_directory))


def make_private(directory: Path) -> None:
    """Create the directory; raise OSError if another user could have put files there."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    is_safe = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    if not is_safe:
        raise PermissionError(f"{directory} belongs to another user, or others may write to it")


def read_beats(directory: Path | None) -> list[Beat]:
    """Return the heartbeats of the processes that have not ended; remove the files of those that have."""
    place = default_directory() if directory is None else directory
    if not place.is_dir():
        return []
    make_private(place)
    found = (_read(path) for path in sorted(place.glob(f"*{_SUFFIX}")))
    return [each for each in found if each is not None]


def _read(path: Path) -> Beat | None:
    try:
        with path.open("r+b") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                beat = json.loads(file.read(_LENGTH))
                return Beat(str(beat["kind"]), int(beat["pid"]), time.monotonic() - float(beat["at"]))
            path.unlink()
    except (FileNotFoundError, ValueError, KeyError):
        pass  # it has just ended
    return None
