"""Let a command that changes many events stop after the current batch when a signal asks it to."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

# SIGHUP: the terminal was closed.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Inside the `with` block, remembers the first signal that asks the command to stop.

    A second signal raises KeyboardInterrupt at once, in case a statement is waiting for a lock. A signal that is
    ignored, as SIGHUP is under `nohup`, stays ignored.
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self._signal: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for signum in SIGNALS:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._previous[signum] = signal.signal(signum, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    @property
    def name(self) -> str:
        """Return the name of the signal: `SIGTERM`."""
        return "" if self._signal is None else self._signal.name

    @property
    def exit_code(self) -> int:
        """Return the exit code of a process that was ended by the signal, as shells report it."""
        return 128 + (signal.SIGINT if self._signal is None else self._signal)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            raise KeyboardInterrupt
        self._signal = signal.Signals(signum)
        self.requested.set()
