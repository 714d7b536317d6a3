"""An application that sets a Dramatiq broker of its own, run as real processes.

Its package has three modules: `shop` sets the broker and declares actors, which emit; `handlers` imports it and
registers handlers; `place_orders` sends messages to the actors.
"""

import sys
from pathlib import Path

from tests.support.processes import BIN, Emitter, Program, Stage


class Application(Stage):
    """A stage without OUTBOX_REDIS_URL: all processes find the broker in the application's modules."""

    package: str

    def outbox_worker(self) -> Program:
        return self._start("outbox-worker", BIN / "outbox", "worker", f"{self.package}.handlers", "-p", "1", "-t", "2")

    def own_worker(self) -> Program:
        """Start the application's own Dramatiq worker, which knows no handlers."""
        return self._start("own-worker", BIN / "dramatiq", f"{self.package}.shop", "-p", "1", "-t", "2")

    def _start(self, name: str, *command: str | Path) -> Program:
        return self.start(name, *command, ready="ready for action")

    def scheduler(self) -> Program:
        return self.start("scheduler", BIN / "outbox", "scheduler", f"{self.package}.shop", ready="scheduler started")

    def emitter(self) -> Emitter:
        """Start a process that only emits."""
        return Emitter(self, f"{self.package}.shop")

    def commit_in_turn(self, number: int) -> None:
        """Commit events from a process that only emits, each when the one before it was delivered."""
        command = [sys.executable, "-m", "tests.apps.in_turn", f"{self.package}.shop", str(number)]
        emitter = self.start("in-turn", *command)
        self.wait_for(lambda: not emitter.running, "the emitter ends")
        assert (emitter.wait(), "all delivered" in emitter.said()) == (0, True), emitter.said()

    def place_orders(self, number: int) -> None:
        """Send tasks from a process that only sends; a worker of the application runs them, and they emit."""
        program = self.start("web", sys.executable, "-m", f"{self.package}.place_orders", str(number))
        assert program.wait() == 0, program.said()
