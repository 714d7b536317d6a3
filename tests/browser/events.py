"""Events for the browser to look at, with handlers that do as the test says."""

from pathlib import Path
from uuid import UUID

from tests.support.processes import Stage


class Gate:
    """What a handler waits at: shut, open, or bad, which makes it fail."""

    def __init__(self, stage: Stage) -> None:
        self.path = stage.gate()
        self._bad = Path(f"{self.path}.bad")

    def make_bad(self) -> None:
        self._bad.touch()
        self.path.touch()

    def mend(self) -> None:
        self._bad.unlink()


def fail_one(stage: Stage) -> tuple[UUID, Gate]:
    """An event that a real worker has tried and given up; its cause can be mended."""
    gate = Gate(stage)
    gate.make_bad()
    (event,) = stage.emit(1, do="wait", gate=str(gate.path), max_attempts=1)
    stage.wake()
    stage.wait_for(lambda: (event, "failed") in stage.rows("id", "status"), "the event has failed")
    return event, gate
