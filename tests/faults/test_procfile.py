"""Stopping the Procfile's processes, as honcho and others do it, lets batches in flight finish."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.dashboard import READY
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


# honcho kills what has not stopped 5 s after the first process that has: too soon on a machine that is busy.
PATIENT_HONCHO = "import honcho.command, honcho.manager; honcho.manager.KILL_WAIT = 60; honcho.command.main()"


def start_honcho(stage: Stage, *honcho: str | Path) -> InFlight:
    stage.environment["HANDLERS"] = HANDLERS
    stage.environment["OUTBOX_DASHBOARD_PORT"] = "0"
    command = [*honcho, "start", "-f", ROOT / "Procfile", "-d", ROOT]
    in_flight = InFlight(stage, lambda: stage.start("honcho", *command, ready="ready for action"))
    in_flight.wait_until_said(READY)  # before, the dashboard would end without having run
    return in_flight


class TestHoncho:
    @pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
    def test_stopped_waits_for_the_event_in_flight(self, stage: Stage, signum: signal.Signals) -> None:
        in_flight = start_honcho(stage, sys.executable, "-c", PATIENT_HONCHO)
        in_flight.program.signal(signum)
        in_flight.wait_until_said("Stopping worker process")
        in_flight.assert_finishes()
        assert "SIGKILL" not in in_flight.program.said()

    def test_killing_the_group_after_its_patience_leaves_the_event_in_flight_alone(self, stage: Stage) -> None:
        in_flight = start_honcho(stage, BIN / "honcho")
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

    def test_whose_main_process_is_killed_while_it_boots_finishes_and_ends_by_itself(self, stage: Stage) -> None:
        boot = stage.gate()
        stage.environment["OUTBOX_TEST_GATE"] = str(boot)

        def start() -> Program:
            program = stage.start("worker", BIN / "dramatiq", "jobs", "tests.apps.boots_slowly", "-p", "1", "-t", "2")
            stage.wait_for(boot.with_suffix(".waits").exists, "it boots")
            assert len(program.family()) > 1
            program.signal(signal.SIGKILL)  # it waits for the worker process to have booted
            program.wait()
            boot.touch()
            return program

        in_flight = InFlight(stage, start)
        in_flight.wait_until_said("its main thread does not stop")
        in_flight.assert_finishes()
