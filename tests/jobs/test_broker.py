"""The broker comes from the settings, or from the application; our actors are declared on it with their options."""

import subprocess
import sys
import textwrap
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from jobs.broker import DEAD_LETTERS_KEPT, InProcessBroker, install_middleware, make_broker
from jobs.middleware import Connections, Lifecycle, Occupancy, Skips
from jobs.redis_broker import OutboxRedisBroker
from outbox.errors import SettingsError
from outbox.settings import Settings
from tests.conftest import Configure
from tests.processes import ROOT, Stage
from tests.servers import wait_until


class TestFromTheSettings:
    def test_redis_with_short_timeouts_and_no_retries(self) -> None:
        broker = make_broker(Settings(redis_url="redis://127.0.0.1:9/3", namespace="mine"))
        assert isinstance(broker, OutboxRedisBroker)
        assert broker.namespace == "mine"
        options = broker.client.connection_pool.connection_kwargs
        assert options["db"] == 3
        assert options["socket_connect_timeout"] <= 5
        assert options["socket_timeout"] <= 5
        assert options["retry"].get_retries() == 0

    def test_without_redis_it_stays_inside_the_process(self) -> None:
        assert isinstance(make_broker(Settings()), InProcessBroker)

    def test_an_address_that_is_none_is_one_clear_error(self) -> None:
        with pytest.raises(SettingsError, match="OUTBOX_REDIS_URL can't be"):
            make_broker(Settings(redis_url="nonsense"))


class TestInProcess:
    def test_it_keeps_only_the_last_dead_letters(self, configure: Configure) -> None:
        configure().registry.ignore("*")
        broker = make_broker(Settings())
        install_middleware(broker)
        calls: list[int] = []

        @dramatiq.actor(broker=broker, max_retries=0)
        def fail(number: int) -> None:
            calls.append(number)
            raise ValueError(number)

        for number in range(DEAD_LETTERS_KEPT + 20):
            fail.send(number)
        worker = dramatiq.Worker(broker, worker_threads=2, worker_timeout=100)
        worker.start()
        assert wait_until(lambda: len(calls) == DEAD_LETTERS_KEPT + 20)
        worker.join()
        worker.stop()
        assert isinstance(broker, InProcessBroker)
        assert len(broker.dead_letters) == DEAD_LETTERS_KEPT


class TestTheApplicationsOwn:
    def test_is_left_as_it_is_but_for_our_middleware_which_comes_once(self) -> None:
        broker = StubBroker()
        theirs = list(broker.middleware)
        for _ in range(2):
            install_middleware(broker)
        assert broker.middleware[: len(theirs)] == theirs
        assert [type(each) for each in broker.middleware[len(theirs) :]] == [Connections, Skips, Occupancy, Lifecycle]

    def test_is_the_one_that_our_actors_are_declared_on(self, stage: Stage) -> None:
        run_python(
            stage,
            """
            import dramatiq
            from dramatiq.brokers.stub import StubBroker
            mine = StubBroker()
            dramatiq.set_broker(mine)
            import jobs
            assert dramatiq.get_broker() is mine
            assert mine.get_declared_actors() == {"deliver_outbox_events", "cleanup_delivered_outbox_events"}
            """,
        )

    def test_may_lack_the_middleware_that_an_option_belongs_to(self, stage: Stage) -> None:
        run_python(
            stage,
            """
            import dramatiq
            from dramatiq.brokers.stub import StubBroker
            dramatiq.set_broker(StubBroker(middleware=[]))
            import jobs
            assert jobs.deliver_outbox_events.options == {}
            """,
        )


class TestOurActors:
    def test_are_on_a_broker_from_the_environment_and_their_own_queue_without_retries(self, stage: Stage) -> None:
        run_python(
            stage,
            """
            import dramatiq, jobs
            from jobs.redis_broker import OutboxRedisBroker
            assert isinstance(dramatiq.get_broker(), OutboxRedisBroker)
            for actor in (jobs.deliver_outbox_events, jobs.cleanup_delivered_outbox_events):
                assert actor.queue_name == "outbox"
                assert actor.options == {"max_retries": 0, "time_limit": 72_000}, actor.options
            """,
        )

    def test_open_no_database_when_they_are_imported(self, stage: Stage) -> None:
        stage.environment["OUTBOX_DATABASE_URL"] = "postgresql://nobody@127.0.0.1:9/nothing"
        run_python(stage, "import jobs, outbox; assert outbox._current is None")

    def test_that_fail_are_not_sent_again(self, stage: Stage) -> None:
        worker = stage.worker()
        stage.box.dialect.run("ALTER TABLE outbox_event RENAME COLUMN payload TO gone")
        stage.wake()
        stage.wait_for(lambda: "gone" in worker.said() or "payload" in worker.said(), "a drain fails")
        keys: Any = stage.broker.client.keys(f"{stage.settings.namespace}:*.DQ")
        assert keys == []
        assert worker.running


def run_python(stage: Stage, text: str) -> None:
    program = textwrap.dedent(text)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=stage.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
