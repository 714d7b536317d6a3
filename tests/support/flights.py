"""Counting round trips to Redis."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from redis.connection import Connection


@contextmanager
def flights() -> Iterator[list[Connection]]:
    """Every time that anything is sent to Redis inside the block, whatever it holds: by the connection it went over."""
    sent: list[Connection] = []
    send: Any = Connection.send_packed_command

    def note(connection: Connection, *arguments: Any, **options: Any) -> Any:
        sent.append(connection)
        return send(connection, *arguments, **options)

    with mock.patch.object(Connection, "send_packed_command", note):
        yield sent
