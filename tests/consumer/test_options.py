"""The parameters of `Consumer` are checked before it does anything; an error says what is wrong, and what to do."""

import math
from typing import Any

import pytest

import outbox
from outbox.consumer.options import unique_name
from outbox.core import Outbox
from tests.conftest import Configure
from tests.consumer.streams import MakeConsumer, Stream, consume, note, notes
from tests.support.servers import Redis

TEXT = "must be text that is not empty"
NUMBER = "must be a whole number from 1 on"
SECONDS = r"must be a number of seconds from 0\.001 to 31536000"


@pytest.fixture
def url(sqlite_url: str) -> str:
    """Nothing here depends on the kind of database."""
    return sqlite_url


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        *(("group", value, f"group {TEXT}") for value in ("", None, 7, b"group")),
        *(("name", value, f"name {TEXT}") for value in ("", 7)),
        *(("dead_letter", value, f"dead_letter {TEXT}") for value in ("", 7)),
        *(("batch", value, f"batch {NUMBER}") for value in (0, -1, 1.5, "50", True, None)),
        *(("max_deliveries", value, f"max_deliveries {NUMBER}") for value in (0, -1, 1.5, "5", True, None)),
        *(
            ("idle_seconds", value, f"idle_seconds {SECONDS}")
            for value in (0, -1, 0.0009, 31_536_001, math.inf, math.nan, "60", True, None)
        ),
        *(("timeout", value, f"timeout {SECONDS}") for value in (0, -1, math.inf, math.nan, "5", True, None)),
        ("url", 7, "The url of a stream must be text, not int"),
        ("url", "", "The stream's url can't be read as redis://"),
        ("url", "http://localhost", "The stream's url can't be read as redis://"),
    ],
)
def test_an_invalid_option_is_refused(make_consumer: MakeConsumer, option: str, value: Any, message: str) -> None:
    with pytest.raises(outbox.SettingsError, match=message):
        make_consumer(**{option: value})


@pytest.mark.parametrize(
    "options", [{"batch": 1}, {"max_deliveries": 1}, {"idle_seconds": 0.001}, {"idle_seconds": 31_536_000}], ids=repr
)
def test_values_at_the_limits_are_accepted(
    stream: Stream, make_consumer: MakeConsumer, options: dict[str, Any]
) -> None:
    stream.add()
    outbox.handler("note.*")(lambda event: note("effect"))
    consume(make_consumer(**options), until=lambda: stream.left() == 0)
    assert notes() == ["effect"]


def test_a_dead_letter_stream_is_another_stream(stream: Stream, make_consumer: MakeConsumer) -> None:
    with pytest.raises(outbox.SettingsError, match=r"The dead-letter stream of '.+' must be another stream"):
        make_consumer(dead_letter=stream.key)


def test_names_are_unique() -> None:
    assert len({unique_name() for _ in range(100)}) == 100


class TestTheStream:
    @pytest.mark.parametrize("name", ["", None, 7, b"events"])
    def test_is_named_by_text(self, box: Outbox, redis_server: Redis, name: Any) -> None:
        with pytest.raises(outbox.RegistrationError, match="The name of a stream must be text that is not empty, not"):
            outbox.Consumer(name, url=redis_server.url)

    def test_may_be_that_of_a_registered_destination(self, box: Outbox, redis_server: Redis, stream: Stream) -> None:
        outbox.add_destination(outbox.RedisStream("bus", url=redis_server.url, stream=stream.key))
        assert repr(outbox.Consumer("bus", name="me")) == f"<Consumer 'me' of {stream.key!r}>"

    def test_may_have_braces_in_its_name(self, box: Outbox, redis_server: Redis) -> None:
        outbox.add_destination(outbox.RedisStream("bus", url=redis_server.url, stream="{{shop}}.events"))
        assert repr(outbox.Consumer("bus", name="me")) == "<Consumer 'me' of '{shop}.events'>"

    def test_may_be_that_of_the_settings(self, configure: Configure, redis_server: Redis) -> None:
        configure(redis_url=redis_server.url, stream="events")
        assert repr(outbox.Consumer("stream", name="me")) == "<Consumer 'me' of 'events'>"

    def test_may_have_the_name_of_a_handler(self, stream: Stream, make_consumer: MakeConsumer) -> None:
        stream.add()
        outbox.handler("note.*", name=stream.key)(lambda event: note("effect"))
        consume(make_consumer(), until=lambda: stream.left() == 0)
        assert notes() == ["effect"]

    def test_is_refused_if_a_destination_of_another_kind_has_its_name(self, box: Outbox) -> None:
        outbox.add_destination(outbox.Webhook("hook", "https://example.org/"))
        with pytest.raises(outbox.RegistrationError, match="'hook' is a Webhook, not a RedisStream"):
            outbox.Consumer("hook", url="redis://localhost")

    def test_is_refused_if_it_depends_on_the_event(self, box: Outbox, redis_server: Redis) -> None:
        outbox.add_destination(outbox.RedisStream("bus", url=redis_server.url, stream="events.{aggregate_type}"))
        with pytest.raises(outbox.RegistrationError, match=r"several streams, 'events\.\{aggregate_type\}'.*one: name"):
            outbox.Consumer("bus")

    def test_needs_a_url(self, box: Outbox) -> None:
        with pytest.raises(outbox.SettingsError, match=r"OUTBOX_REDIS_URL is set, .* pass --url \(url=…\)"):
            outbox.Consumer("events")


class TestBeforeItBegins:
    def test_there_must_be_handlers(self, make_consumer: MakeConsumer) -> None:
        with pytest.raises(outbox.RegistrationError, match="no handler is registered, so every entry would be ackn"):
            make_consumer().check()

    def test_a_handler_that_is_awaited_is_refused(self, make_consumer: MakeConsumer) -> None:
        @outbox.handler("order.*", name="async")
        async def handle(_: outbox.Event) -> None: ...

        with pytest.raises(outbox.RegistrationError, match="Write a plain function"):
            make_consumer().check()

    def test_destinations_of_other_kinds_are_no_handlers(
        self, redis_server: Redis, make_consumer: MakeConsumer
    ) -> None:
        outbox.add_destination(outbox.RedisStream("bus", url=redis_server.url))
        with pytest.raises(outbox.RegistrationError, match="no handler is registered"):
            make_consumer().check()

    def test_the_inbox_must_have_its_table(self, box: Outbox, make_consumer: MakeConsumer) -> None:
        outbox.handler("*")(note)
        with box.dialect.connection():
            box.database.execute_sql("DROP TABLE inbox")
        with pytest.raises(outbox.SchemaError, match=r"The inbox has no table in .* run `outbox init`"):
            make_consumer().check()

    def test_redis_must_respond(self, make_consumer: MakeConsumer) -> None:
        outbox.handler("*")(note)
        with pytest.raises(outbox.SettingsError, match=r"The Redis of the stream '.*' can't be used: ConnectionError"):
            make_consumer(url="redis://127.0.0.1:1/0").check()

    @pytest.mark.parametrize("suffix", ["", ".dead"])
    def test_both_keys_must_be_streams_or_unused(
        self, stream: Stream, make_consumer: MakeConsumer, suffix: str
    ) -> None:
        outbox.handler("*")(note)
        stream.client.set(stream.key + suffix, "text")
        with pytest.raises(outbox.SettingsError, match=rf"In Redis '{stream.key}{suffix}' is a string, not a stream"):
            make_consumer().check()

    def test_a_stream_that_does_not_exist_is_logged(
        self, stream: Stream, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
    ) -> None:
        outbox.handler("note.*")(lambda event: note("effect"))
        make_consumer().check()
        assert f"there is no stream {stream.key} yet" in caplog.text
