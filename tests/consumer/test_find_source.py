"""A name and a URL are those of a stream of Redis, or of a queue of RabbitMQ. No server is needed to tell."""

import sys
from typing import Any

import pytest

import outbox
from outbox.consumer.find_source import find_address
from outbox.core import Outbox
from outbox.settings import Settings

AMQP = "amqp://me:hush@127.0.0.1:1/"


@pytest.fixture
def url(sqlite_url: str) -> str:
    """Nothing here depends on the kind of database."""
    return sqlite_url


@pytest.mark.parametrize(
    ("given", "settings", "found"),
    [
        ("redis://a", {"consume_url": "redis://b", "redis_url": "redis://c"}, "redis://a"),
        (None, {"consume_url": AMQP, "redis_url": "redis://c"}, AMQP),
        (None, {"redis_url": "redis://c"}, "redis://c"),
    ],
)
def test_the_url_is_the_given_one_or_that_of_the_settings(
    box: Outbox, given: str | None, settings: dict[str, Any], found: str
) -> None:
    assert find_address("orders", given, box.registry, Settings.load({}, **settings)) == ("orders", found)


def test_a_queue_may_have_the_name_of_any_destination(box: Outbox) -> None:
    outbox.add_destination(outbox.Rabbit("orders", url=AMQP, exchange="orders"))
    assert find_address("orders", AMQP, box.registry, box.settings) == ("orders", AMQP)
    with pytest.raises(outbox.RegistrationError, match="'orders' is a Rabbit, not a RedisStream"):
        find_address("orders", None, box.registry, box.settings)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"group": "billing"}, "A queue of RabbitMQ has no group 'billing'"),
        ({"idle_seconds": 901}, "idle_seconds must be at most 900"),
        ({"url": "amqp://me:hush@localhost:port/"}, "The url of a RabbitMQ can't be read"),
        ({"dead_letter": "orders"}, "The dead-letter stream of 'orders' must be another stream"),
    ],
)
def test_the_parameters_of_a_queue_are_checked_and_no_password_is_repeated(
    box: Outbox, wrong: dict[str, Any], text: str
) -> None:
    given: dict[str, Any] = {"url": AMQP} | wrong
    with pytest.raises(outbox.SettingsError, match=text) as raised:
        outbox.Consumer("orders", **given)
    assert "hush" not in str(raised.value)
    assert "hush" not in repr(outbox.Consumer("orders", url=AMQP))


def test_a_queue_needs_pika_and_says_so(box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pika", None)
    for name in [name for name in sys.modules if name.startswith(("outbox.consumer.rabbit", "outbox.buses.rabbit_"))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(outbox.SettingsError, match=r"pika is not installed: pip install 'dramatiq-outbox\[rabbitmq\]'"):
        outbox.Consumer("orders", url=AMQP)
