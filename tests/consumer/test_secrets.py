"""A password in the URL of a stream appears in no error, no log line and no repr."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

import outbox
from outbox.consumer.find_source import Address
from tests.consumer.streams import MakeConsumer, note, running
from tests.support.program import BIN, run
from tests.support.servers import Redis
from tests.support.table import becomes_true

PASSWORD = "hush-hush"


@pytest.fixture
def url(sqlite_url: str) -> str:
    """Nothing here depends on the kind of database."""
    return sqlite_url


@pytest.fixture
def address(redis_server: Redis) -> Iterator[str]:
    """Return a URL with a user and a password that Redis accepts, until a test removes the user."""
    with redis.Redis.from_url(redis_server.url) as client:
        admin: Any = client
        admin.acl_setuser("reader", enabled=True, passwords=[f"+{PASSWORD}"], keys=["*"], commands=["+@all"])
        yield redis_server.url.replace("redis://", f"redis://reader:{PASSWORD}@")
        admin.acl_deluser("reader")


def is_hidden(*texts: object) -> bool:
    return all(PASSWORD not in str(text) for text in texts)


def test_no_object_shows_it(make_consumer: MakeConsumer, address: str) -> None:
    consumer = make_consumer(url=address)
    source: Any = consumer._source
    assert is_hidden(
        repr(consumer),
        repr(consumer._source),
        repr(source.group),
        repr(source.group._client),
        Address("events", address),
    )


def test_an_error_at_the_start_does_not_repeat_it(
    redis_server: Redis, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.handler("*")(note)
    consumer = make_consumer(url=redis_server.url.replace("redis://", f"redis://nobody:{PASSWORD}@"))
    with pytest.raises(outbox.SettingsError, match="can't be used: AuthenticationError") as raised:
        consumer.check()
    assert is_hidden(raised.value, caplog.text)


def test_the_error_of_an_invalid_url_does_not_repeat_it(make_consumer: MakeConsumer) -> None:
    with pytest.raises(outbox.SettingsError, match="The stream's url can't be read") as raised:
        make_consumer(url=f"redis://:{PASSWORD}/{PASSWORD}@h:1/0")
    assert is_hidden(raised.value)
    assert raised.value.__cause__ is None


def test_the_log_of_a_consumer_that_redis_refuses_does_not_repeat_it(
    redis_server: Redis, address: str, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.handler("note.*")(note)
    with redis.Redis.from_url(redis_server.url) as admin, caplog.at_level("DEBUG"), running(make_consumer(url=address)):
        becomes_true(lambda: "consuming" in caplog.text)
        admin.acl_deluser("reader")
        becomes_true(lambda: "Redis is unavailable, trying again" in caplog.text)
    assert is_hidden(caplog.text)


@pytest.mark.parametrize("address", [f"redis://:{PASSWORD}@127.0.0.1:1/0", f"redis://:{PASSWORD}/@h:port/0"])
def test_the_command_does_not_repeat_it(url: str, address: str, tmp_path: Any) -> None:
    run(BIN / "outbox", "init", database_url=url)
    module = tmp_path / "handlers.py"
    module.write_text("import outbox\noutbox.handler('*', name='all')(print)\n")
    done = run(BIN / "outbox", "consume", "events", "handlers", "--url", address, cwd=tmp_path, database_url=url)
    assert done.returncode == 2
    assert "Traceback" not in done.stdout
    assert is_hidden(done.stdout)
