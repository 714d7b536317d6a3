"""The middleware gives each message a working connection, and tracks which worker threads are busy."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.middleware import Middleware, SkipMessage
from playhouse.pool import PooledDatabase

import outbox
from outbox import current_outbox
from outbox.dramatiq.broker import create_broker, install_middleware
from outbox.dramatiq.middleware import BusyThreads, Lifecycle, find_middleware
from outbox.settings import Settings
from outbox.storage.connect import open_database
from tests.conftest import Configure
from tests.support.processes import MakeStage, Stage
from tests.support.servers import PostgresServer


class Interrupted(BaseException):
    """An exception that is no Exception, like the one that Dramatiq's time limit raises in a thread."""


class SkipSome(Middleware):
    """The application's own middleware, which skips some messages."""

    def before_process_message(self, broker: dramatiq.Broker, message: Any) -> None:
        if message.options.get("skip"):
            raise SkipMessage


class Running:
    """A worker inside the test's process, and an actor that runs what it is given."""

    def __init__(self, middleware: Middleware | None = None) -> None:
        self.broker = create_broker(Settings())
        if middleware is not None:
            self.broker.add_middleware(middleware)
        install_middleware(self.broker)
        self._work: dict[int, Callable[[], None]] = {}
        self.answers: list[Any] = []
        self.actor = dramatiq.actor(broker=self.broker, actor_name="act", max_retries=0)(self._act)
        self.worker = dramatiq.Worker(self.broker, worker_threads=1, worker_timeout=50)
        self.worker.start()

    def _act(self, number: int) -> None:
        self._work[number]()

    def run(self, work: Callable[[], None], **options: Any) -> None:
        """Run the function in a message, and wait until it has ended."""
        number = len(self._work)
        self._work[number] = work
        self.actor.send_with_options(args=(number,), **options)
        self.broker.join("default", fail_fast=False)  # type: ignore[call-arg]
        self.worker.join()

    def ask(self, question: str = "SELECT pg_backend_pid()") -> Any:
        """Run a query in a message; return its result, or None if it fails."""
        answers: list[Any] = []
        self.run(lambda: answers.append(outbox.current().dialect.run(question).fetchone()[0]))
        return answers[0] if answers else None


@pytest.fixture
def start(configure: Configure) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*arguments: Any) -> Running:
        if not current_outbox.is_configured():
            configure()
        outbox.ignore("*")
        started.append(Running(*arguments))
        return started[-1]

    yield start
    for running in started:
        running.worker.stop()


@pytest.fixture
def running(start: Callable[..., Running]) -> Running:
    return start()


def idle_connections() -> int:
    database = outbox.current().database
    assert isinstance(database, PooledDatabase)
    assert not database._in_use
    return len(database._connections)


class TestConnections:
    def test_a_message_finds_its_connection_open_and_the_next_one_reuses_it(self, running: Running) -> None:
        opened: list[bool] = []
        running.run(lambda: opened.append(not outbox.current().database.is_closed()))
        assert opened == [True]
        assert running.ask() == running.ask()
        assert idle_connections() == 1

    @pytest.mark.parametrize(
        "leave",
        [
            lambda database: database.begin(),
            lambda database: database.execute_sql("BEGIN"),
            lambda database: database.atomic().__enter__(),
        ],
        ids=["begin", "plain BEGIN", "atomic"],
    )
    @pytest.mark.parametrize("end", [None, ValueError, Interrupted])
    def test_a_transaction_left_open_is_rolled_back(
        self, running: Running, leave: Callable[[Any], None], end: type[BaseException] | None
    ) -> None:
        def leave_open() -> None:
            leave(outbox.current().database)
            outbox.current().dialect.run("INSERT INTO note (text) VALUES ('lost')")
            if end is not None:
                raise end

        running.run(leave_open)
        assert running.ask("SELECT count(*) FROM note") == 0
        in_transaction: list[bool] = []
        running.run(lambda: in_transaction.append(outbox.current().dialect.in_transaction))
        assert in_transaction == [False]
        idle_connections()

    def test_one_that_was_interrupted_is_not_used_again(self, running: Running) -> None:
        def interrupted() -> None:
            raise Interrupted

        before = running.ask()
        running.run(interrupted)
        assert running.ask() not in (before, None)
        assert idle_connections() == 1

    def test_a_skipped_message_gives_its_back(self, start: Callable[..., Running]) -> None:
        running = start()
        running.broker.add_middleware(SkipSome())
        before = running.ask()
        running.run(lambda: None, skip=True)
        assert idle_connections() == 1
        assert running.ask() == before

    def test_after_a_restart_of_postgres_every_message_has_one_that_works(self, start: Callable[..., Running]) -> None:
        with PostgresServer() as server:
            database = open_database(server.create_database("restarted"))
            outbox.configure(database=database, dispatch="off").create_tables()
            running = start()
            before = running.ask()
            server.restart()
            after = [running.ask() for _ in range(20)]
            assert None not in after
            assert before not in after
            database.close_all()  # type: ignore[attr-defined]


class TestBusyThreads:
    def test_counts_right_though_others_skip_messages(self, start: Callable[..., Running]) -> None:
        running = start(SkipSome())  # before ours: we don't see the message, only that it was skipped
        busy_threads = find_middleware(running.broker, BusyThreads)
        for _ in range(3):
            running.run(lambda: None, skip=True)
        idle: list[bool] = []
        running.run(lambda: idle.append(busy_threads.has_idle_thread([])))
        assert idle == [False]
        assert busy_threads.has_idle_thread([])
        assert not busy_threads.has_idle_thread(["fetched, and not begun"])

    def test_a_wake_up_goes_past_a_worker_whose_threads_are_busy(self, make_stage: MakeStage) -> None:
        stage = make_stage(sweep_seconds=3600)  # nobody looks without a wake-up
        gate = stage.gate()
        for _ in range(2):
            stage.worker(threads=1)
        (slow,) = stage.emit(1, do="wait", gate=str(gate))
        stage.wake()
        stage.wait_until_begun(slow)
        for _ in range(8):
            (event,) = stage.emit()
            stage.wake()
            stage.wait_for(lambda event=event: event in stage.ended(), "the idle worker delivers")  # type: ignore[misc]
        assert slow not in stage.ended()
        gate.touch()
        stage.wait_until_all("delivered")

    def test_a_handler_has_only_so_many_calls_in_a_process_and_its_threads_are_free(
        self, make_stage: MakeStage
    ) -> None:
        stage = make_stage(sweep_seconds=3600)
        stage.worker("tests.apps.actors", threads=4)
        gate = stage.gate()
        slow: list[Any] = []
        for _ in range(stage.settings.drains):
            slow += stage.emit(1, do="wait", gate=str(gate))
            stage.wake()
            stage.wait_until_begun(*slow)
        (waiting,) = stage.emit()
        stage.wake()
        send_work(stage, 20, seconds=0)
        stage.wait_for(lambda: len(stage.entries("worked")) == 20, "the application's own actors run")
        assert waiting not in stage.began()
        gate.touch()
        stage.wait_until_all("delivered")

    def test_the_applications_actors_do_not_starve_deliveries(self, make_stage: MakeStage) -> None:
        stage = make_stage(sweep_seconds=3600)
        stage.worker("tests.apps.actors")
        send_work(stage, 2_000, seconds=0.02)
        stage.wait_for(lambda: bool(stage.entries("worked")), "the flood is under way")
        (event,) = stage.emit()
        stage.wake()
        stage.wait_until_all("delivered")
        assert len(stage.entries("worked")) < 2_000
        assert stage.ended() == [event]

    def test_deliveries_do_not_starve_the_applications_actors(self, make_stage: MakeStage) -> None:
        stage = make_stage(batch_size=10)
        stage.worker("tests.apps.actors", threads=3)
        stage.emit(1_000, do="work", seconds=0.005)
        for _ in range(3):
            stage.wake()
        stage.wait_for(lambda: bool(stage.began()), "the flood is under way")
        send_work(stage, 10, seconds=0)
        stage.wait_for(lambda: len(stage.entries("worked")) == 10, "the application's actors run")
        assert len(stage.ended()) < 1_000


def send_work(stage: Stage, number: int, *, seconds: float) -> None:
    for n in range(number):
        message: dramatiq.Message[None] = dramatiq.Message(
            queue_name="default", actor_name="work", args=(n, seconds), kwargs={}, options={}
        )
        stage.broker.enqueue(message)


def test_what_is_stopped_with_a_worker_goes_on_after_it(start: Callable[..., Running]) -> None:
    running = start(Lifecycle(lambda broker: None))
    stopping = outbox.current().stopping
    running.broker.emit_before("worker_shutdown", running.worker)
    assert stopping.is_set()
    running.worker.stop()
    assert not stopping.is_set()


def test_an_outbox_worker_has_a_fallback_poller_for_as_long_as_it_runs(start: Callable[..., Running]) -> None:
    running = start(Lifecycle(lambda broker: None))
    assert len(pollers()) == 1
    running.worker.stop()
    assert pollers() == []


def test_an_applications_own_worker_has_no_fallback_poller(start: Callable[..., Running]) -> None:
    start()
    assert pollers() == []


def pollers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "outbox-fallback-poller"]
