"""Destinations that the settings name: they come and go with the settings, and stand beside those in code."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import outbox
from outbox import current_outbox
from outbox.destinations.registry import Registry
from outbox.settings import Settings
from outbox.webhooks import webhook
from tests.conftest import Configure
from tests.support.processes import BIN, MakeStage, make_stage
from tests.support.servers import Redis
from tests.support.table import emit_one, statuses

__all__ = ["make_stage"]

REDIS = "redis://:hush@127.0.0.1:1/0"
URL = "https://example.com/hush"
SECRET = outbox.webhooks.new_secret()


@pytest.fixture
def url(sqlite_url: str) -> str:
    """The same on every database."""
    return sqlite_url


@pytest.fixture
def stream(redis_server: Redis) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    yield name
    with redis.Redis.from_url(redis_server.url) as client:
        client.delete(name)


def entries(server: Redis, stream: str) -> list[dict[bytes, bytes]]:
    with redis.Redis.from_url(server.url) as client:
        found: Any = client.xrange(stream)
    return [fields for _, fields in found]


def names() -> list[str]:
    return sorted(current_outbox.registry.destinations)


class TestAStream:
    def test_gets_every_event(self, configure: Configure, redis_server: Redis, stream: str) -> None:
        box = configure(redis_url=redis_server.url, stream=stream)
        for event_type in ("order.placed", "user.created"):
            emit_one(event_type)
        box.process_pending_events()
        assert statuses() == {"delivered": 2}
        assert [entry[b"type"] for entry in entries(redis_server, stream)] == [b"order.placed", b"user.created"]

    def test_is_enough_for_a_worker_to_start(self, make_stage: MakeStage, redis_server: Redis, stream: str) -> None:
        stage = make_stage(stream=stream)
        worker = stage.start("worker", BIN / "dramatiq", "jobs", "-p", "1", "-t", "2", ready="ready for action")
        ids = stage.emit(200)
        stage.wake()
        stage.wait_until_all("delivered")
        assert sorted(entry[b"id"].decode() for entry in entries(redis_server, stream)) == sorted(map(str, ids))
        assert worker.running

    def test_needs_a_redis(self, configure: Configure) -> None:
        with pytest.raises(outbox.SettingsError, match=r"OUTBOX_STREAM is set, but OUTBOX_REDIS_URL"):
            configure(stream="events")

    @pytest.mark.parametrize(
        "wrong", [{"stream": "events.{order}"}, {"redis_url": "redis://:hush@h:port"}, {"redis_url": REDIS + "?hush=1"}]
    )
    def test_that_can_not_be_used_names_the_variables_and_repeats_no_address(
        self, configure: Configure, wrong: dict[str, str]
    ) -> None:
        with pytest.raises(outbox.SettingsError, match="OUTBOX_STREAM and OUTBOX_REDIS_URL can't be used") as raised:
            configure(**{"stream": "events", "redis_url": REDIS} | wrong)
        assert "hush" not in str(raised.value)
        assert raised.value.__cause__ is None


class TestAWebhook:
    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
        """What webhooks were made of."""
        calls: list[tuple[Any, ...]] = []
        original = webhook.Webhook

        def make(name: str, url: str, *, secret: list[str] | None, client: str, **options: Any) -> outbox.Webhook:
            calls.append((name, url, secret, client, *options.values()))
            return original(name, url, secret=secret, client=client, **options)

        monkeypatch.setattr(webhook, "Webhook", make)
        return calls

    def test_is_made_of_its_address_and_secrets(self, configure: Configure, made: list[tuple[Any, ...]]) -> None:
        old = outbox.webhooks.new_secret()
        box = configure(webhook_url=URL, webhook_secret=f" {SECRET}  {old}\n")
        assert made == [("webhook", URL, [SECRET, old], "httpx", True)]
        assert isinstance(box.registry.destinations["webhook"], outbox.Webhook)

    def test_is_posted_by_the_client_that_is_asked_for(self, configure: Configure, made: list[tuple[Any, ...]]) -> None:
        configure(webhook_url=URL, webhook_secret=SECRET, webhook_client="curl")
        assert made == [("webhook", URL, [SECRET], "curl", True)]

    def test_stores_nothing_of_a_response_if_that_is_asked_for(
        self, configure: Configure, made: list[tuple[Any, ...]]
    ) -> None:
        configure(webhook_url=URL, webhook_secret=SECRET, webhook_response_excerpt=False)
        assert made == [("webhook", URL, [SECRET], "httpx", False)]

    def test_without_a_secret_is_warned_about(
        self, configure: Configure, made: list[tuple[Any, ...]], caplog: pytest.LogCaptureFixture
    ) -> None:
        configure(webhook_url=URL)
        assert made[0] == ("webhook", URL, None, "httpx", True)
        (warning,) = [message for message in caplog.messages if "OUTBOX_WEBHOOK_SECRET" in message]
        assert "not signed" in warning
        assert "hush" not in warning

    def test_with_a_secret_is_not_warned_about(self, configure: Configure, caplog: pytest.LogCaptureFixture) -> None:
        configure(webhook_url=URL, webhook_secret=SECRET)
        assert caplog.messages == []

    def test_needs_an_address_for_its_secret(self, configure: Configure) -> None:
        with pytest.raises(
            outbox.SettingsError, match="OUTBOX_WEBHOOK_SECRET is set, but OUTBOX_WEBHOOK_URL"
        ) as raised:
            configure(webhook_secret="hush")
        assert "hush" not in str(raised.value)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"webhook_url": "pigeon://u:hush@h"},
            {"webhook_url": "hush"},
            {"webhook_secret": "   "},
            {"webhook_secret": "whsec_hush"},
        ],
        ids=str,
    )
    def test_that_can_not_be_used_names_the_variables_and_repeats_neither(
        self, configure: Configure, wrong: dict[str, str]
    ) -> None:
        with pytest.raises(outbox.SettingsError, match="OUTBOX_WEBHOOK_URL and OUTBOX_WEBHOOK_SECRET") as raised:
            configure(**{"webhook_url": URL, "webhook_secret": SECRET} | wrong)
        assert "hush" not in str(raised.value)
        assert SECRET not in str(raised.value)
        assert raised.value.__cause__ is None


class TestOtherSettings:
    """The package has one registry, and `configure` may be called again."""

    def test_replace_what_earlier_ones_named(self, configure: Configure) -> None:
        configure(redis_url=REDIS, stream="old")
        configure(redis_url=REDIS, stream="new")
        assert repr(current_outbox.registry.destinations["stream"]) == "<RedisStream 'stream' to 'new'>"

    def test_remove_what_they_do_not_name_and_leave_what_is_in_code(self, configure: Configure) -> None:
        configure(redis_url=REDIS, stream="old")
        outbox.handler("order.*", name="mine")(lambda _: None)
        assert names() == ["mine", "stream"]
        configure()
        assert names() == ["mine"]
        configure(redis_url=REDIS, stream="new", webhook_url=URL, webhook_secret=SECRET)
        assert names() == ["mine", "stream", "webhook"]

    def test_apply_to_types_that_were_looked_up_before(self, configure: Configure) -> None:
        for stream, wanting in ((None, 0), ("events", 1), (None, 0)):
            box = configure(redis_url=REDIS, stream=stream)
            assert len(box.registry.wanting("order.placed")) == wanting

    def test_that_are_wrong_change_nothing(self, configure: Configure) -> None:
        configure(redis_url=REDIS, stream="good")
        for wrong in ({"stream": "{bad}"}, {"stream": "other", "dispatch": "pigeon"}, {"webhook_secret": "hush"}):
            with pytest.raises(outbox.SettingsError):
                configure(**{"redis_url": REDIS} | wrong)
            assert repr(current_outbox.registry.destinations["stream"]) == "<RedisStream 'stream' to 'good'>"

    def test_of_another_outbox_are_its_own(self, configure: Configure) -> None:
        configure(redis_url=REDIS, stream="mine")
        other = outbox.Outbox(Settings(dispatch="off", redis_url=REDIS, stream="theirs"), registry=Registry())
        assert repr(other.registry.destinations["stream"]) == "<RedisStream 'stream' to 'theirs'>"
        assert repr(current_outbox.registry.destinations["stream"]) == "<RedisStream 'stream' to 'mine'>"


class TestANameThatIsTaken:
    CLASH = r"Two destinations are called 'stream', one of them by the settings"

    def test_by_the_settings_is_refused_in_code(self, configure: Configure) -> None:
        configure(redis_url=REDIS, stream="events")
        with pytest.raises(outbox.RegistrationError, match=self.CLASH):
            outbox.handler("*", name="stream")(lambda _: None)
        configure()
        outbox.handler("*", name="stream")(lambda _: None)

    def test_in_code_is_refused_in_the_settings_and_nothing_of_them_is_registered(self, configure: Configure) -> None:
        outbox.handler("*", name="stream")(lambda _: None)
        handler = current_outbox.registry.destinations["stream"]
        with pytest.raises(outbox.RegistrationError, match=self.CLASH):
            configure(redis_url=REDIS, stream="events", webhook_url=URL, webhook_secret=SECRET)
        assert dict(current_outbox.registry.destinations) == {"stream": handler}

    def test_twice_in_code_is_refused_without_naming_the_settings(self) -> None:
        registry = Registry()
        registry.handler("*", name="stream")(lambda _: None)
        with pytest.raises(outbox.RegistrationError, match=r"Two destinations are called 'stream'\. "):
            registry.handler("*", name="stream")(lambda _: None)


def test_a_registry_with_nothing_but_configured_destinations_is_not_empty(configure: Configure) -> None:
    assert configure().registry.is_empty
    assert not configure(redis_url=REDIS, stream="events").registry.is_empty


def test_a_registry_that_was_cleared_has_forgotten_what_was_configured(configure: Configure) -> None:
    configure(redis_url=REDIS, stream="events")
    current_outbox.registry.clear()
    assert current_outbox.registry.is_empty
    outbox.handler("*", name="stream")(lambda _: None)
    with pytest.raises(outbox.RegistrationError):
        configure(redis_url=REDIS, stream="events")


class TestARabbitMQ:
    def test_is_named_rabbitmq_and_connects_only_when_it_delivers(self, configure: Configure) -> None:
        configure(rabbitmq_url="amqp://me:hush@127.0.0.1:1/ amqp://127.0.0.1:1/", rabbitmq_exchange="events")
        assert names() == ["rabbitmq"]
        assert "hush" not in repr(current_outbox.registry.destinations)

    @pytest.mark.parametrize(("given", "missing"), [("url", "EXCHANGE"), ("exchange", "URL")])
    def test_needs_a_server_and_an_exchange(self, configure: Configure, given: str, missing: str) -> None:
        with pytest.raises(outbox.SettingsError, match=f"OUTBOX_RABBITMQ_{missing} is not"):
            configure(**{f"rabbitmq_{given}": "amqp://127.0.0.1:1/"})

    def test_that_can_not_be_used_names_the_variables_and_repeats_no_address(self, configure: Configure) -> None:
        with pytest.raises(outbox.SettingsError, match="OUTBOX_RABBITMQ_URL and OUTBOX_RABBITMQ_EXCHANGE") as raised:
            configure(rabbitmq_url="http://me:hush@127.0.0.1/", rabbitmq_exchange="events")
        assert "hush" not in str(raised.value)


class TestANats:
    def test_is_named_nats_and_connects_only_when_it_delivers(self, configure: Configure) -> None:
        configure(nats_url="nats://me:hush@127.0.0.1:1 nats://127.0.0.1:2", nats_subject="events.{tenant_id}")
        assert names() == ["nats"]
        assert "hush" not in repr(current_outbox.registry.destinations)

    @pytest.mark.parametrize("wrong", [{"nats_url": "http://hush"}, {"nats_subject": "events.{hush}"}])
    def test_that_can_not_be_used_names_the_variables_and_repeats_no_address(
        self, configure: Configure, wrong: dict[str, str]
    ) -> None:
        with pytest.raises(outbox.SettingsError, match="OUTBOX_NATS_URL and OUTBOX_NATS_SUBJECT") as raised:
            configure(**{"nats_url": "nats://me:secret@localhost"} | wrong)
        assert "http://hush" not in str(raised.value)
        assert "secret" not in str(raised.value)


class TestAKafka:
    def test_is_named_kafka_and_connects_only_when_it_delivers(self, configure: Configure) -> None:
        configure(kafka_servers="127.0.0.1:1", kafka_config="security.protocol=SASL_SSL sasl.password=hush=")
        assert names() == ["kafka"]
        destination: Any = current_outbox.registry.destinations["kafka"]
        assert destination._config["sasl.password"] == "hush="
        assert "hush" not in repr(destination)

    @pytest.mark.parametrize(
        "wrong", [{"kafka_topic": "{hush}"}, {"kafka_config": "hush"}, {"kafka_config": "acks=0 sasl.password=hush"}]
    )
    def test_that_can_not_be_used_names_the_variables_and_repeats_no_setting(
        self, configure: Configure, wrong: dict[str, str]
    ) -> None:
        with pytest.raises(outbox.SettingsError, match="OUTBOX_KAFKA_CONFIG") as raised:
            configure(kafka_servers="127.0.0.1:1", **wrong)
        assert "sasl" not in str(raised.value)
        assert "=hush" not in str(raised.value)
