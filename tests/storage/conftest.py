"""A database with roles of its own."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from outbox.core import Outbox
from outbox.destinations.registry import Registry
from outbox.settings import Settings
from outbox.storage.connect import open_database
from tests.support.roles import ROLES, As, as_role, role


@pytest.fixture
def owner(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """The owner's connection to a database that has the tables, and the three roles without any rights."""
    database: Any = open_database(postgres_url)
    Outbox(Settings.load({}, dispatch="off"), database=database).create_tables()
    database.close_all()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for name in ROLES:
            connection.execute(SQL("CREATE ROLE {}").format(Identifier(role(name))))
            connection.execute(SQL("GRANT USAGE ON SCHEMA public TO {}").format(Identifier(role(name))))
        try:
            yield connection
        finally:
            for name in ROLES:
                connection.execute(SQL("DROP OWNED BY {}").format(Identifier(role(name))))
                connection.execute(SQL("DROP ROLE {}").format(Identifier(role(name))))


@pytest.fixture
def box_as(owner: psycopg.Connection[Any], postgres_url: str) -> Iterator[As]:
    """An outbox whose connections have one of the roles."""
    with ExitStack() as stack:

        def made(name: str) -> Outbox:
            database: Any = open_database(as_role(postgres_url, name))
            stack.callback(database.close_all)
            settings = Settings.load({}, dispatch="off", publish_seconds=0)
            return Outbox(settings, database=database, registry=Registry())

        yield made
