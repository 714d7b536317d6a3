"""An application with its own Dramatiq workers and broker: which process delivers, and which broker it uses."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from outbox.dramatiq.redis_broker import OutboxRedisBroker
from outbox.dramatiq.worker import start_worker
from tests.conftest import Configure
from tests.support.processes import BIN, MakeStage, Program, Stage

ORDERS = 20


def with_a_broker_of_its_own(stage: Stage, namespace: str | None = None) -> Stage:
    """Make `tests.apps.tasks` set a broker on the same Redis."""
    stage.environment["OUTBOX_TEST_BROKER_URL"] = str(stage.settings.redis_url)
    stage.environment["OUTBOX_TEST_BROKER_NAMESPACE"] = stage.settings.namespace if namespace is None else namespace
    return stage


def own_worker(stage: Stage) -> Program:
    return stage.start("own", BIN / "dramatiq", "tests.apps.tasks", "-p", "1", "-t", "2", ready="ready for action")


def outbox_worker(stage: Stage, *modules: str) -> Program:
    options = ("-p", "1", "-t", "2")
    return stage.start("worker", BIN / "outbox", "worker", *modules, *options, ready="ready for action")


def send(stage: Stage, actor: str, *arguments: Any) -> None:
    message: dramatiq.Message[Any] = dramatiq.Message(
        queue_name="shop", actor_name=actor, args=arguments, kwargs={}, options={}
    )
    stage.broker.enqueue(message)


def place_orders(stage: Stage, numbers: Iterable[int]) -> None:
    for number in numbers:
        send(stage, "place_order", number)


def waiting(broker: OutboxRedisBroker, queue: str = "outbox") -> int:
    return int(broker.client.llen(f"{broker.namespace}:{queue}"))


def emitted(stage: Stage) -> list[UUID]:
    return sorted(id for (id,) in stage.rows("id"))


class TestAWorkerThatOnlyEmits:
    def test_takes_no_wake_up_and_leaves_every_event_to_the_outbox_workers(self, stage: Stage) -> None:
        with_a_broker_of_its_own(stage)
        worker = own_worker(stage)
        place_orders(stage, range(ORDERS))
        stage.wait_for(lambda: len(stage.rows("id")) == ORDERS, "all orders are placed")
        stage.wait_for(lambda: waiting(stage.broker) > 0 or stage.statuses()["delivered"] > 0, "a wake-up was sent")
        queues = stage.folder / "queues"
        send(stage, "write_queues", str(queues))
        stage.wait_for(queues.exists, "it says what it consumes")
        assert queues.read_text() == "shop"
        assert stage.statuses() == {"pending": ORDERS}
        stage.worker()
        place_orders(stage, range(ORDERS, 2 * ORDERS))
        stage.wait_for(lambda: stage.statuses() == {"delivered": 2 * ORDERS}, "all events are delivered")
        assert sorted(stage.ended()) == emitted(stage)
        assert worker.running

    def test_drops_the_wake_ups_that_it_takes_when_the_actors_are_declared_in_it_all_the_same(
        self, stage: Stage
    ) -> None:
        with_a_broker_of_its_own(stage)
        stage.environment["OUTBOX_TEST_DECLARE"] = "yes"
        worker = own_worker(stage)
        place_orders(stage, range(ORDERS))
        stage.wait_for(lambda: "it is not an outbox worker" in worker.said(), "it says so")
        stage.wait_for(lambda: len(stage.rows("id")) == ORDERS, "all orders are placed")
        worker.kill()
        assert stage.statuses() == {"pending": ORDERS}
        assert worker.said().count("it is not an outbox worker") == 1


class TestTheApplicationsBroker:
    @pytest.mark.parametrize("program", [(BIN / "outbox", "scheduler"), (sys.executable, "-m", "scheduler")])
    def test_carries_the_wake_ups_of_emitters_workers_and_scheduler_alike(
        self, make_stage: MakeStage, program: tuple[str | Path, ...]
    ) -> None:
        stage = with_a_broker_of_its_own(make_stage(sweep_seconds=3600))
        url = stage.environment.pop("OUTBOX_REDIS_URL")
        assert url == stage.environment["OUTBOX_TEST_BROKER_URL"]
        outbox_worker(stage, "tests.apps.tasks_and_handlers")
        place_orders(stage, [1])
        stage.wait_for(lambda: stage.statuses() == {"delivered": 1}, "the emitter's wake-up arrives")
        stage.emit()  # wakes nobody
        scheduler = stage.start("scheduler", *program, "tests.apps.tasks", ready="scheduler started")
        stage.wait_for(lambda: stage.statuses() == {"delivered": 2}, "the scheduler's first sweep arrives")
        assert scheduler.running
        doctor = stage.start("doctor", BIN / "outbox", "doctor", "-m", "tests.apps.tasks", "--json")
        doctor.wait()
        told = {each["check"]: each["what"] for each in json.loads(doctor.said())["findings"]}
        assert "wake-ups use the broker that the application has set" in told["redis"]
        assert told["sweep"] == "A worker took a sweep."

    def test_is_found_in_processes_that_are_spawned_and_not_forked(self, stage: Stage) -> None:
        with_a_broker_of_its_own(stage)
        outbox_worker(stage, "tests.apps.tasks_and_handlers", "--use-spawn")
        place_orders(stage, [1])
        stage.wait_for(lambda: stage.statuses() == {"delivered": 1}, "it is delivered")

    @pytest.mark.parametrize("program", [["outbox", "worker"], ["outbox", "scheduler"], ["outbox", "up"]], ids=" ".join)
    def test_in_another_namespace_than_the_settings_name_is_refused(self, stage: Stage, program: list[str]) -> None:
        with_a_broker_of_its_own(stage, namespace="mine")
        name, *command = program
        started = stage.start("refused", BIN / name, *command, "tests.apps.tasks_and_handlers")
        assert started.wait() != 0
        assert "Set OUTBOX_NAMESPACE=mine, or unset OUTBOX_REDIS_URL" in started.said()
        assert "Traceback" not in started.said()

    def test_may_be_set_in_a_module_that_dramatiq_imports_before_jobs(self, stage: Stage) -> None:
        with_a_broker_of_its_own(stage)
        stage.environment.pop("OUTBOX_REDIS_URL")
        command = (BIN / "dramatiq", "tests.apps.tasks", "jobs", "tests.apps.ledger", "-p", "1", "-t", "2")
        stage.start("worker", *command, ready="ready for action")
        place_orders(stage, [1])
        stage.wait_for(lambda: stage.statuses() == {"delivered": 1}, "it is delivered")

    def test_set_after_jobs_was_imported_is_refused_with_the_right_command(self, stage: Stage) -> None:
        with_a_broker_of_its_own(stage)
        worker = stage.start("refused", BIN / "dramatiq", "jobs", "tests.apps.tasks_and_handlers", "-p", "1", "-t", "1")
        assert worker.wait() != 0
        assert "dramatiq your.broker jobs your.module" in worker.said()


class TestActorsOfAModuleThatSetsNoBroker:
    def test_are_on_the_broker_from_the_settings_in_an_outbox_worker(self, stage: Stage) -> None:
        outbox_worker(stage, "tests.apps.actors")
        stage.broker.enqueue(
            dramatiq.Message(queue_name="default", actor_name="work", args=(7, 0), kwargs={}, options={})
        )
        stage.wait_for(lambda: len(stage.entries("worked")) == 1, "the actor has run")

    def test_are_not_left_on_localhost_without_a_word(self, stage: Stage) -> None:
        worker = stage.start("refused", BIN / "dramatiq", "tests.apps.actors", "jobs", "-p", "1", "-t", "1")
        assert worker.wait() != 0
        assert "outbox.dramatiq.set_up_broker()" in worker.said()
        assert "Traceback" not in worker.said()


class TestAnApplicationWithPackagesOfTheseNames:
    def test_is_delivered_to_by_the_commands(self, stage: Stage, tmp_path: Path) -> None:
        folder = tmp_path / "application"
        for package in ("jobs", "scheduler"):
            (folder / package).mkdir(parents=True)
            (folder / package / "__init__.py").write_text(f"raise AssertionError('the own {package}')\n")
        stage.environment["PYTHONPATH"] = str(Path(__file__).parents[2])
        stage.folder = tmp_path
        worker = stage.start(
            "worker", "/bin/sh", "-c", 'cd "$0" && exec "$@"', folder,
            *(BIN / "outbox", "worker", "tests.apps.ledger", "-p", "1", "-t", "2"), ready="ready for action",
        )  # fmt: skip
        stage.start(
            "scheduler", "/bin/sh", "-c", 'cd "$0" && exec "$@"', folder, BIN / "outbox", "scheduler",
            ready="scheduler started",
        )  # fmt: skip
        stage.emit(3)
        stage.wait_until_all("delivered")
        assert len(stage.ended()) == 3
        assert worker.running


class TestAQueueThatAModuleConfigures:
    @pytest.mark.parametrize(
        "command",
        [
            ["outbox", "up", "tests.apps.queue_of_its_own"],
            ["outbox", "worker", "tests.apps.queue_of_its_own", "-p", "1"],
            ["dramatiq", "jobs", "tests.apps.queue_of_its_own", "-p", "1"],
        ],
        ids=" ".join,
    )
    def test_is_the_one_that_is_consumed(self, make_stage: MakeStage, command: list[str]) -> None:
        stage = make_stage(sweep_seconds=3600)
        name, *arguments = command
        program = stage.start("program", BIN / name, *arguments)
        stage.wait_for(lambda: "up: " in program.said() or "ready for action" in program.said(), "it is ready")
        with stage.box.dialect.connection():
            stage.box.emit("Thing", "1", "chain.first")
        send_to_the_queue_mine(stage)
        stage.wait_for(lambda: stage.statuses() == {"delivered": 2}, "both are delivered")

    def test_is_the_one_that_a_starting_worker_declares_its_actors_on(self, configure: Configure) -> None:
        configure(queue="mine").registry.ignore("*")
        broker = StubBroker()
        start_worker(broker)
        assert {actor.queue_name for actor in broker.actors.values()} == {"mine"}


def send_to_the_queue_mine(stage: Stage) -> None:
    from outbox.dramatiq import wakeup
    from outbox.dramatiq.actor_names import DELIVER

    wakeup.send(stage.broker, "mine", DELIVER)
