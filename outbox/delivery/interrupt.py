"""Ending a call that does not come back.

Python can raise an exception in another thread, between two of its instructions. What sits in a system call notices
only when that returns; its thread is then left behind, and ends with the process.
"""

from __future__ import annotations

import ctypes
import threading


class Overdue(BaseException):
    """It went on for longer than OUTBOX_MAX_RUN_SECONDS."""

    def __str__(self) -> str:
        return "it went on for longer than OUTBOX_MAX_RUN_SECONDS"


def interrupt(thread: threading.Thread) -> None:
    """Raise Overdue in the thread."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Overdue))
