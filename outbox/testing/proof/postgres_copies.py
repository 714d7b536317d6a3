"""Copies of a PostgreSQL database: CREATE DATABASE … TEMPLATE, on the same server.

PostgreSQL does not copy a database while other sessions are connected to it. Then `pg_dump` fills a new one, if that
program is installed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, LiteralString

from playhouse.pool import PooledDatabase

from outbox.errors import as_sentence
from outbox.storage.private_connection import new_connection
from outbox.testing.proof.database_copy import Copy, Original, Tables, check_size, named, unique_name
from outbox.testing.proof.errors import CannotProve

# How many numbers a sequence skips.
SKIPPED = 1_000
# How long the server may take to notice that a process with a connection was killed.
PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.005

IN_USE, NOT_ALLOWED = "55006", "42501"  # SQLSTATE

TABLES: LiteralString = """
    SELECT n.nspname, c.relname, array_agg(a.attname::text ORDER BY a.attnum)
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%'
    GROUP BY 1, 2 ORDER BY 1, 2
"""
SEQUENCES: LiteralString = "SELECT schemaname, sequencename, coalesce(last_value, start_value) FROM pg_sequences"
OTHERS: LiteralString = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
END: LiteralString = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
)


class PostgresOriginal(Original):
    # A connection to the original, which only copies and drops databases.
    _admin: Any = None
    _reopen: tuple[Any, ...] = ()
    # The copies that exist, or may: an interrupt can come at any time.
    _made: tuple[str, ...] = ()

    def make_base(self, most_megabytes: int) -> Copy:
        self._check_no_transaction()
        self._admin = new_connection(self.database)
        self._admin.autocommit = True
        check_size(self._admin.execute("SELECT pg_database_size(current_database())").fetchone()[0], most_megabytes)
        servers = self._admin.execute("SELECT srvname FROM pg_foreign_server ORDER BY 1").fetchall()
        if servers:
            listed = ", ".join(name for (name,) in servers)
            raise CannotProve(f"The database has foreign servers ({listed}): a copy of it would write to them.")
        self._close_own_connections()
        return self._create(self._admin.info.dbname, is_original=True)

    def copy(self, base: Copy) -> Copy:
        return self._create(base.name, is_original=False)

    def close(self) -> None:
        for name in self._made:
            self.drop(name)
        if self._admin is not None:
            self._admin.close()
        for database in self._reopen:
            database.connect(reuse_if_open=True)

    @contextmanager
    def connection(self, name: str) -> Iterator[Any]:
        """Yield a connection to a copy."""
        database = self.database
        about = SimpleNamespace(database=named(database, name), _encoding=database._encoding, _register_unicode=False)
        parameters = dict(database.connect_params)
        if "dbname" in parameters:
            parameters["dbname"] = name
        connection = database._adapter.connect(about, **parameters)
        try:
            connection.autocommit = True
            if connection.info.dbname != name:
                raise CannotProve(
                    "The database's name is in a connection parameter that can't be replaced by a copy's name."
                )
            yield connection
        finally:
            connection.close()

    def run(self, statement: Any, parameters: tuple[object, ...] = ()) -> Any:
        """Run a statement that copies, drops or watches databases."""
        return self._admin.execute(statement, parameters)

    def drop(self, name: str) -> None:
        """End the sessions of a copy, and drop it."""
        from psycopg import sql

        self.run(END, (name,))
        self.run(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(name)))
        self._made = tuple(each for each in self._made if each != name)

    def _create(self, template: str, *, is_original: bool) -> Copy:
        from psycopg import Error, sql

        name = unique_name()
        self._made += (name,)
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        try:
            self.run(create.format(sql.Identifier(name), sql.Identifier(template)))
        except Error as error:
            if error.sqlstate == NOT_ALLOWED:
                raise CannotProve(
                    f"This user can't copy the database: {as_sentence(error)} Grant it CREATEDB (ALTER ROLE … "
                    "CREATEDB) and let it own the database, or use another one (OUTBOX_DATABASE_URL)."
                ) from None
            if error.sqlstate != IN_USE or not is_original:
                raise
            self._dump_into(name)
        return PostgresCopy(name, self)

    def _dump_into(self, name: str) -> None:
        """Fill a new database from a dump, which works while other sessions are connected."""
        from psycopg import sql

        if not (shutil.which("pg_dump") and shutil.which("psql")):
            raise CannotProve(
                "Others are connected to the database, and PostgreSQL then does not copy it. Stop them, or install "
                "pg_dump and psql (Debian: postgresql-client)."
            )
        self.run(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        environment = _environment(self._admin.info)
        dump = ["pg_dump", "--no-owner", "--no-privileges"]
        load = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-o", os.devnull]
        try:
            dumped = subprocess.run(dump, env=environment, capture_output=True, check=True)  # noqa: S603  (no input)
            there = environment | {"PGDATABASE": name}
            subprocess.run(load, env=there, capture_output=True, check=True, input=dumped.stdout)  # noqa: S603  (likewise)
        except subprocess.CalledProcessError as error:
            text = error.stderr.decode(errors="replace").strip().splitlines()
            raise CannotProve(f"{error.cmd[0]} could not copy the database: {text[-1] if text else error}") from None

    def _check_no_transaction(self) -> None:
        if any(not db.is_closed() and db.in_transaction() for db in self.objects if db is self.database):
            raise CannotProve(
                "A transaction is open, and PostgreSQL copies only what is committed. In a test: "
                "@pytest.mark.outbox(rollback=False)."
            )

    def _close_own_connections(self) -> None:
        """Close the idle connections of this process to the original."""
        database = self.database
        if not database.is_closed():
            self._reopen = (database,)
            database.close()
        if isinstance(database, PooledDatabase):
            database.close_idle()


def _environment(info: Any) -> dict[str, str]:
    """Return the environment in which PostgreSQL's programs connect as this connection does.

    Their libpq may be older than the driver's. It ignores variables that it does not know, and refuses such parameters.
    """
    from psycopg.pq import Conninfo

    parameters = {**info.get_parameters(), "host": info.host, "port": str(info.port), "password": info.password}
    variables = {each.keyword.decode(): each.envvar for each in Conninfo.get_defaults()}
    set_here = {name.decode(): parameters[key] for key, name in variables.items() if name and key in parameters}
    # The values of a service would take precedence over these variables.
    return {name: value for name, value in os.environ.items() if name != "PGSERVICE"} | set_here


class PostgresCopy(Copy):
    def __init__(self, name: str, original: PostgresOriginal) -> None:
        super().__init__(name)
        self._original = original

    def read(self) -> Tables:
        from psycopg import sql

        found: Tables = {}
        with self._original.connection(self.name) as connection:
            for schema, name, columns in connection.execute(TABLES).fetchall():
                copy = sql.SQL("COPY {} TO STDOUT").format(sql.Identifier(schema, name))
                with connection.cursor().copy(copy) as rows:
                    content = b"".join(rows).decode(errors="replace")
                shown = name if schema == "public" else f"{schema}.{name}"
                found[shown] = tuple(columns), Counter(map(_row, content.split("\n")[:-1]))
        return found

    def skip_numbers(self) -> None:
        import psycopg

        with self._original.connection(self.name) as connection:
            for schema, name, last in connection.execute(SEQUENCES).fetchall():
                with contextlib.suppress(psycopg.Error):  # it may not be ours, or have no such number
                    quoted = f'"{schema}"."{name}"'
                    connection.execute("SELECT setval(%s::regclass, %s)", (quoted, last + SKIPPED))

    def wait_until_unused(self) -> None:
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while self._original.run(OTHERS, (self.name,)).fetchone()[0]:
            if time.monotonic() >= ends_at:
                raise CannotProve("Connections of a process that was killed are still open after a minute.")
            time.sleep(POLL_SECONDS)

    def drop(self) -> None:
        self._original.drop(self.name)


def _row(line: str) -> tuple[str | None, ...]:
    return tuple(None if value == "\\N" else value for value in line.split("\t"))
