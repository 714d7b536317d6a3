"""The broker comes from the settings, or from the application. The outbox's actors are declared on it."""

from types import SimpleNamespace
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage
from redis.sentinel import Sentinel

from outbox.dramatiq.broker import check_matches_settings, create_broker, install_middleware
from outbox.dramatiq.in_process_broker import DEAD_LETTERS_KEPT, InProcessBroker
from outbox.dramatiq.middleware import BusyThreads, ClosedConnections, Connections, SkippedResults
from outbox.dramatiq.rabbitmq import looks_like_dramatiq_default
from outbox.dramatiq.redis_broker import OutboxRedisBroker
from outbox.errors import SettingsError
from outbox.settings import Settings
from tests.conftest import Configure
from tests.support.processes import Stage
from tests.support.servers import wait_until


class TestFromTheSettings:
    def test_redis_with_short_timeouts_and_no_retries(self) -> None:
        broker = create_broker(Settings(redis_url="redis://127.0.0.1:9/3", namespace="mine"))
        assert isinstance(broker, OutboxRedisBroker)
        assert broker.namespace == "mine"
        options = broker.client.connection_pool.connection_kwargs
        assert options["db"] == 3
        assert options["socket_connect_timeout"] <= 5
        assert options["socket_timeout"] <= 5
        assert options["retry"].get_retries() == 0

    def test_without_redis_it_stays_inside_the_process(self) -> None:
        assert isinstance(create_broker(Settings()), InProcessBroker)

    def test_an_address_that_is_none_is_one_clear_error(self) -> None:
        with pytest.raises(SettingsError, match="OUTBOX_REDIS_URL can't be"):
            create_broker(Settings(redis_url="nonsense"))


class TestInProcess:
    def test_it_keeps_only_the_last_dead_letters(self, configure: Configure) -> None:
        configure().registry.ignore("*")
        broker = create_broker(Settings())
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
        ours_first, *rest = broker.middleware
        assert type(ours_first) is ClosedConnections
        assert rest[: len(theirs)] == theirs
        assert [type(each) for each in rest[len(theirs) :]] == [
            Connections,
            SkippedResults,
            BusyThreads,
            CurrentMessage,
        ]

    def test_is_the_one_that_our_actors_are_declared_on(self, stage: Stage) -> None:
        stage.run_python(
            """
            import dramatiq
            from dramatiq.brokers.stub import StubBroker
            mine = StubBroker()
            dramatiq.set_broker(mine)
            import jobs, outbox
            outbox.ignore("*")
            worker = dramatiq.Worker(mine)
            worker.start()
            worker.stop()
            assert dramatiq.get_broker() is mine
            assert mine.get_declared_actors() == {"deliver_outbox_events", "cleanup_delivered_outbox_events"}
            """,
        )

    def test_may_lack_the_middleware_that_an_option_belongs_to(self, stage: Stage) -> None:
        stage.run_python(
            """
            import dramatiq
            from dramatiq.brokers.stub import StubBroker
            from outbox.dramatiq.actors import declare_actors
            from outbox.settings import Settings
            broker = StubBroker(middleware=[])
            declare_actors(broker, Settings())
            assert broker.get_actor("deliver_outbox_events").options == {}
            """,
        )

    def test_is_used_by_an_emitter_that_neither_sets_nor_declares_anything(self, stage: Stage) -> None:
        stage.run_python(
            """
            import dramatiq, outbox
            from dramatiq.brokers.stub import StubBroker
            from dramatiq.brokers.redis import RedisBroker
            with outbox.current().database.atomic():
                outbox.emit("Thing", 1, "test.emitted")
            outbox.current().notifier.flush(60)
            assert dramatiq.broker.global_broker is None
            mine = RedisBroker(url=outbox.loaded_settings().redis_url, namespace=outbox.loaded_settings().namespace)
            dramatiq.set_broker(mine)
            sent = []
            mine.enqueue = sent.append
            mine.client.delete(f"{mine.namespace}:outbox.flag")
            with outbox.current().database.atomic():
                outbox.emit("Thing", 2, "test.emitted")
            outbox.current().notifier.flush(60)
            (message,) = sent
            assert (message.actor_name, message.queue_name) == ("deliver_outbox_events", "outbox")
            assert not mine.get_declared_actors() and not mine.get_declared_queues()
            """,
        )
        assert waiting(stage) == 1

    def test_that_dramatiq_has_made_on_localhost_for_an_early_actor_is_said(self, stage: Stage) -> None:
        said = stage.run_python(
            """
            import dramatiq, outbox
            dramatiq.actor(lambda: None, actor_name="early")
            with outbox.current().database.atomic():
                outbox.emit("Thing", 1, "test.emitted")
            outbox.current().notifier.flush(60)
            """,
        )
        assert said.count("outbox.dramatiq.set_up_broker()") == 1
        assert stage.statuses() == {"pending": 1}


def redis_broker(*, namespace: str = "dramatiq", **options: Any) -> RedisBroker:
    return RedisBroker(namespace=namespace, **options)


def sentinel_broker() -> RedisBroker:
    return redis_broker(client=Sentinel([("127.0.0.1", 1)]).master_for("mymaster"), namespace="other")


class TestAgreementWithTheSettings:
    @pytest.mark.parametrize(
        ("broker", "url"),
        [
            (redis_broker(), "redis://127.0.0.1/0"),
            (redis_broker(host="h", port=7, db=3, password="x"), "redis://:hush@h:7/3"),
            (redis_broker(url="redis://h"), "redis://h:6379/0"),
            (redis_broker(client=redis.Redis(unix_socket_path="/s")), "unix:///s"),
            (sentinel_broker(), "redis://h/0"),
            (StubBroker(), "redis://h/0"),
        ],
        ids=["localhost", "all parts", "defaults", "socket", "Sentinel", "another kind"],
    )
    def test_of_the_same_server_or_of_one_that_can_not_be_compared(
        self, broker: dramatiq.Broker, url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        check_matches_settings(broker, Settings(redis_url=url))
        assert caplog.messages == []

    @pytest.mark.parametrize(
        ("broker", "told"),
        [
            (redis_broker(host="h", port=6380), "the Redis at h:6380, database 0"),
            (redis_broker(host="h", db=1), "the Redis at h:6379, database 1"),
            (redis_broker(host="other", password="hush"), "the Redis at other:6379, database 0"),
            (redis_broker(client=redis.Redis(unix_socket_path="/s")), "the Redis at /s, database 0"),
            (redis_broker(host="h", namespace="mine"), "Set OUTBOX_NAMESPACE=mine"),
        ],
        ids=["port", "db", "host", "socket", "namespace"],
    )
    def test_is_needed_where_both_name_a_redis(self, broker: dramatiq.Broker, told: str) -> None:
        for _ in range(2):  # it is refused again and again
            with pytest.raises(SettingsError) as refused:
                check_matches_settings(broker, Settings(redis_url="redis://:hush@h/0"))
            assert told in str(refused.value)
            assert "hush" not in str(refused.value)

    def test_is_not_asked_for_where_the_settings_name_none(self, caplog: pytest.LogCaptureFixture) -> None:
        check_matches_settings(redis_broker(host="h", namespace="mine"), Settings())
        assert caplog.messages == []

    @pytest.mark.parametrize(("port", "is_default"), [(5672, True), (5673, False)])
    def test_dramatiqs_own_rabbitmq_broker_is_recognised(self, port: int, is_default: bool) -> None:
        parameters = SimpleNamespace(
            host="127.0.0.1", port=port, heartbeat=5, connection_attempts=5, blocked_connection_timeout=30
        )
        assert looks_like_dramatiq_default(SimpleNamespace(parameters=parameters)) is is_default


EVERY_MODULE = """
import importlib, pkgutil, threading
import dramatiq.broker
import outbox
for package in ("outbox", "scheduler"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
assert dramatiq.broker.global_broker is None
from outbox import current_outbox
assert not current_outbox.is_configured()
assert threading.active_count() == 1
"""


def test_importing_anything_but_jobs_has_no_effects(stage: Stage) -> None:
    stage.run_python(EVERY_MODULE)


class TestOurActors:
    def test_are_on_a_broker_from_the_environment_and_their_own_queue_without_retries(self, stage: Stage) -> None:
        stage.run_python(
            """
            import dramatiq, jobs, outbox
            from outbox.dramatiq.redis_broker import OutboxRedisBroker
            broker = dramatiq.get_broker()
            assert isinstance(broker, OutboxRedisBroker)
            outbox.ignore("*")
            worker = dramatiq.Worker(broker)
            worker.start()
            worker.stop()
            for name in ("deliver_outbox_events", "cleanup_delivered_outbox_events"):
                actor = broker.get_actor(name)
                assert actor.queue_name == "outbox"
                assert actor.options == {"max_retries": 0, "time_limit": 100_000}, actor.options
            """,
        )

    def test_open_no_database_when_they_are_imported(self, stage: Stage) -> None:
        stage.environment["OUTBOX_DATABASE_URL"] = "postgresql://nobody@127.0.0.1:9/nothing"
        stage.run_python("import jobs; from outbox import current_outbox; assert not current_outbox.is_configured()")

    def test_that_fail_are_not_sent_again(self, stage: Stage) -> None:
        worker = stage.worker()
        stage.box.dialect.run("ALTER TABLE outbox_event RENAME COLUMN payload TO gone")
        stage.wake()
        stage.wait_for(lambda: "gone" in worker.said() or "payload" in worker.said(), "a drain fails")
        keys: Any = stage.broker.client.keys(f"{stage.settings.namespace}:*.DQ")
        assert keys == []
        assert worker.running


def waiting(stage: Stage) -> int:
    return int(stage.broker.client.llen(f"{stage.settings.namespace}:outbox"))
