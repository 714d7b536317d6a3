"""Stopping the Procfile's processes, as honcho and others do it, lets batches in flight finish."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import BIN, HANDLERS, ROOT, Program, Stage
from tests.support.servers import alive, send


class InFlight:
    """A running program in the middle of an event, whose handler goes on when the gate is opened."""

    def __init__(self, stage: Stage, start: Callable[[], Program]) -> None:
        self._stage = stage
        self._gate = stage.gate()
        (self.event,) = stage.emit(1, do="wait", gate=str(self._gate))
        self.program = start()
        stage.wait_until_begun(self.event)
        (began,) = stage.entries("began")
        self.worker = began.pid
        self.family = self.program.family()
        assert self.worker in self.family

    def wait_until_said(self, text: str) -> None:
        self._stage.wait_for(lambda: text in self.program.said(), f"it says {text!r}")

    def assert_finishes(self) -> None:
        """The event in flight is delivered, once, and no process is left."""
        assert alive(self.worker)
        self._gate.touch()
        self._stage.wait_for(lambda: not any(map(alive, self.family)), "all of its processes ended")
        assert self._stage.rows("id", "status", "attempts", "lease_id") == [(self.event, "delivered", 1, None)]
        assert self._stage.began() == self._stage.ended() == [self.event]
        assert "through the gate" in self.program.said()


class TestHoncho:
    @pytest.fixture
    def in_flight(self, stage: Stage) -> InFlight:
        stage.environment["HANDLERS"] = f"{HANDLERS} -p 1 -t 2"
        stage.environment["OUTBOX_DASHBOARD_PORT"] = "0"
        command: list[str | Path] = [BIN / "honcho", "start", "-f", ROOT / "Procfile", "-d", ROOT]
        return InFlight(stage, lambda: stage.start("honcho", *command, ready="ready for action"))

    @pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
    def test_stopped_waits_for_the_event_in_flight(self, in_flight: InFlight, signum: signal.Signals) -> None:
        in_flight.program.signal(signum)
        in_flight.wait_until_said("Stopping worker process")
        in_flight.assert_finishes()
        assert "SIGKILL" not in in_flight.program.said()

    def test_killing_the_group_after_its_patience_leaves_the_event_in_flight_alone(self, in_flight: InFlight) -> None:
        in_flight.program.signal(signal.SIGTERM)
        in_flight.wait_until_said("sending SIGKILL to worker")
        in_flight.wait_until_said("The main process has ended")
        in_flight.assert_finishes()


class TestAWorker:
    @pytest.fixture
    def in_flight(self, stage: Stage) -> InFlight:
        return InFlight(stage, stage.worker)

    def test_that_hears_of_its_end_twice_at_once_finishes_first(self, in_flight: InFlight) -> None:
        send(signal.SIGTERM, [in_flight.worker])
        in_flight.program.signal(signal.SIGTERM)
        in_flight.wait_until_said("Sending signal 'SIGTERM' to subprocesses")
        in_flight.wait_until_said("Shutting down...")
        in_flight.assert_finishes()
        assert in_flight.program.wait() == 0

    def test_whose_group_hears_it_finishes_first(self, in_flight: InFlight) -> None:
        os.killpg(in_flight.program.pid, signal.SIGTERM)
        in_flight.wait_until_said("Shutting down...")
        in_flight.assert_finishes()
        assert in_flight.program.wait() == 0

    def test_whose_main_process_is_killed_finishes_and_ends_by_itself(self, in_flight: InFlight) -> None:
        in_flight.program.signal(signal.SIGKILL)
        in_flight.wait_until_said("The main process has ended")
        in_flight.assert_finishes()
