"""Test an application that uses the outbox: see what it emits, deliver inside the test, and let time pass.

Nothing here is a fake: events go through the real tables and the real claim, dispatch and settle. The pytest plugin
(`plugin.py`) offers the same as fixtures.

This module is a façade, as `outbox/__init__.py` is: pytest imports it in every run, also in those that don't use it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outbox.testing.assertions import assert_emitted, assert_nothing_emitted, assert_sent
    from outbox.testing.captured import Captured, capture
    from outbox.testing.deliver_here import deliver
    from outbox.testing.errors import NotAccepted, NotFinished
    from outbox.testing.event_by_hand import make_event
    from outbox.testing.move_time import advance
    from outbox.testing.proof.errors import CannotProve, NotSafe
    from outbox.testing.proof.proof import Proof
    from outbox.testing.proof.prove_handler import prove
    from outbox.testing.proof.samples import sample
    from outbox.testing.run_until_done import run_all
    from outbox.testing.separate_registry import recorded, sandbox

__all__ = [
    "CannotProve",
    "Captured",
    "NotAccepted",
    "NotFinished",
    "NotSafe",
    "Proof",
    "advance",
    "assert_emitted",
    "assert_nothing_emitted",
    "assert_sent",
    "capture",
    "deliver",
    "make_event",
    "prove",
    "recorded",
    "run_all",
    "sample",
    "sandbox",
]

# Where each name is defined.
_HOMES = {
    "outbox.testing.move_time": "advance",
    "outbox.testing.assertions": "assert_emitted assert_nothing_emitted assert_sent",
    "outbox.testing.captured": "Captured capture",
    "outbox.testing.deliver_here": "deliver",
    "outbox.testing.errors": "NotAccepted NotFinished",
    "outbox.testing.event_by_hand": "make_event",
    "outbox.testing.proof.errors": "CannotProve NotSafe",
    "outbox.testing.proof.proof": "Proof",
    "outbox.testing.proof.prove_handler": "prove",
    "outbox.testing.proof.samples": "sample",
    "outbox.testing.run_until_done": "run_all",
    "outbox.testing.separate_registry": "recorded sandbox",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


if not TYPE_CHECKING:  # a type checker reads the imports above, and refuses a name that is not there

    def __getattr__(name: str) -> object:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(home), name)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
