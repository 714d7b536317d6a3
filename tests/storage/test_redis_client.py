"""The client of Redis that the whole library uses."""

import pytest
import redis

from outbox.errors import SettingsError
from outbox.storage.redis_client import CONNECT_TIMEOUT, RESPONSE_TIMEOUT, make_client
from tests.support.servers import Redis, wait_until

ADDRESS = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize(
    "url", ["hush", "http://:hush@h", "redis://:hush/hush@h:1/0", "redis://:hush@h?nonsense=1", "redis://h?db=hush"]
)
def test_the_error_about_an_invalid_url_does_not_quote_it(url: str) -> None:
    with pytest.raises(SettingsError, match="OUTBOX_REDIS_URL can't be read as") as raised:
        make_client(url)
    assert "hush" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_it_gives_up_soon_and_does_not_try_again_by_itself() -> None:
    options = make_client(ADDRESS).connection_pool.connection_kwargs
    assert (options["socket_connect_timeout"], options["socket_timeout"]) == (CONNECT_TIMEOUT, RESPONSE_TIMEOUT)
    assert options["retry"].get_retries() == 0


@pytest.mark.parametrize(("response", "connect"), [(60.0, CONNECT_TIMEOUT), (0.5, 0.5)])
def test_it_connects_within_the_response_timeout(response: float, connect: float) -> None:
    options = make_client(ADDRESS, response_timeout=response).connection_pool.connection_kwargs
    assert (options["socket_connect_timeout"], options["socket_timeout"]) == (connect, response)


def test_an_unread_reply_is_not_taken_for_the_reply_to_the_next_command(redis_server: Redis) -> None:
    with make_client(redis_server.url) as client:
        connection = client.connection_pool.get_connection()
        connection.send_command("ECHO", "old")
        assert wait_until(connection.can_read)
        client.connection_pool.release(connection)
        assert client.echo("new") == b"new"


def test_a_server_that_does_not_exist_is_an_error_at_once() -> None:
    with make_client(ADDRESS) as client, pytest.raises(redis.ConnectionError):
        client.ping()
