"""A PostgreSQL database that every test gets as new: empty, or with the tables.

To drop the tables and create them again takes about 100 ms of processor time, and thousands of tests need them. If the
tables' definitions are as they were made, it is enough to empty those that have been written to: 4 ms, on a connection
that is kept for it. A new session, which has to read the system's tables first, would take 15 ms more.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

Connection = psycopg.Connection[Any]

SCHEMAS = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)'"

# The definitions of everything in these schemas, as one number. The ids are part of them: an object that was dropped
# and made again is another one.
DEFINITIONS = """
WITH schemas AS (SELECT * FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)'),
    relations AS (SELECT * FROM pg_class WHERE relnamespace IN (SELECT oid FROM schemas))
SELECT md5(string_agg(object, E'\n' ORDER BY object)) FROM (
    SELECT concat_ws(' ', nspname, oid, nspowner, nspacl) FROM schemas
    UNION ALL SELECT concat_ws(' ', oid, relname, relkind, relowner, relpersistence, reloptions, relacl, relnatts,
        relchecks, relhasrules, relhastriggers, relhassubclass, relrowsecurity, relforcerowsecurity) FROM relations
    UNION ALL SELECT concat_ws(' ', attrelid, attnum, attname, atttypid, atttypmod, attnotnull, atthasdef, attidentity,
        attisdropped, attstattarget, attacl, attoptions) FROM pg_attribute
        WHERE attnum > 0 AND attrelid IN (SELECT oid FROM relations)
    UNION ALL SELECT concat_ws(' ', oid, adbin) FROM pg_attrdef WHERE adrelid IN (SELECT oid FROM relations)
    UNION ALL SELECT concat_ws(' ', indexrelid, indisvalid, indisready, indisunique) FROM pg_index
        WHERE indrelid IN (SELECT oid FROM relations)
    UNION ALL SELECT concat_ws(' ', oid, conname, convalidated) FROM pg_constraint
        WHERE connamespace IN (SELECT oid FROM schemas)
    UNION ALL SELECT concat_ws(' ', oid, tgname, tgenabled) FROM pg_trigger
        WHERE tgrelid IN (SELECT oid FROM relations)
    UNION ALL SELECT concat_ws(' ', oid, polname) FROM pg_policy WHERE polrelid IN (SELECT oid FROM relations)
    UNION ALL SELECT concat_ws(' ', oid, typname, typacl) FROM pg_type WHERE typnamespace IN (SELECT oid FROM schemas)
    UNION ALL SELECT concat_ws(' ', oid, proname, prosrc) FROM pg_proc WHERE pronamespace IN (SELECT oid FROM schemas)
    UNION ALL SELECT concat_ws(' ', seqrelid, seqstart, seqincrement, seqmax, seqmin, seqcache, seqcycle)
        FROM pg_sequence
) AS objects (object)
"""

# The tables that take up space, as those do whose rows were deleted or rolled back, and those whose sequence is in use.
WRITTEN = """
SELECT quote_ident(nspname) || '.' || quote_ident(relname)
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname !~ '^(pg_|information_schema$)' AND relkind = 'r' AND (
    pg_relation_size(pg_class.oid) > 0
    OR EXISTS (
        SELECT FROM pg_depend
            JOIN pg_sequences ON objid = (quote_ident(schemaname) || '.' || quote_ident(sequencename))::regclass
        WHERE refobjid = pg_class.oid AND deptype IN ('a', 'i') AND last_value IS NOT NULL
    )
)
ORDER BY 1
"""

# Whether a table has a sequence, which has to begin anew although the rows are the same.
HAS_SEQUENCE = """
SELECT EXISTS (
    SELECT FROM pg_depend JOIN pg_class ON pg_class.oid = objid
    WHERE refobjid = %s::regclass AND deptype IN ('a', 'i') AND relkind = 'S'
)
"""


class PostgresDatabase:
    """The database of one process of the tests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._definitions: str | None = None  # None: the tables may not be there
        self._rows: dict[str, bytes] = {}  # those with which the tables were made
        self._has_sequence: set[str] = set()  # of those
        self._connection: Connection | None = None

    def connected(self) -> Connection:
        """Return the connection that is kept, or another one if a test has ended it."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.execute("SELECT 1")
                return self._connection
        self.close()
        self._connection = psycopg.connect(self.url, autocommit=True)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def clear(self) -> None:
        """Drop everything."""
        self._definitions = None
        connection = self.connected()
        for (name,) in connection.execute(SCHEMAS).fetchall():
            connection.execute(SQL("DROP SCHEMA {} CASCADE").format(Identifier(name)))
        connection.execute("CREATE SCHEMA public")

    def renew(self, create_tables: Callable[[], None]) -> None:
        """Have the tables as they are when they have just been created, and nothing else."""
        if self._definitions is not None and self._emptied():
            return
        self.clear()
        create_tables()
        connection = self.connected()
        self._definitions = definitions(connection)
        self._rows = {table: read(connection, table) for table in written(connection)}
        self._has_sequence = {
            table for table in self._rows if connection.execute(HAS_SEQUENCE, (table,)).fetchone() == (True,)
        }

    def _emptied(self) -> bool:
        """Put back the rows with which the tables were made; return False if their definitions have changed."""
        connection = self.connected()
        with connection.transaction():
            if definitions(connection) != self._definitions:
                return False
            changed = {table for table in written(connection) if table not in self._rows}
            changed |= {table for table in self._rows if self._is_changed(connection, table)}
            if changed:
                connection.execute(f"TRUNCATE {', '.join(sorted(changed))} RESTART IDENTITY".encode())
            for table in self._rows.keys() & changed:
                with connection.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
                    copy.write(self._rows[table])
        return True

    def _is_changed(self, connection: Connection, table: str) -> bool:
        """Return whether a table has other rows than it was made with; to truncate it takes longer than to read it."""
        return table in self._has_sequence or read(connection, table) != self._rows[table]


def definitions(connection: Connection) -> str:
    return str(connection.execute(DEFINITIONS).fetchall()[0][0])


def written(connection: Connection) -> list[str]:
    return [table for (table,) in connection.execute(WRITTEN).fetchall()]


def read(connection: Connection, table: str) -> bytes:
    with connection.cursor().copy(f"COPY {table} TO STDOUT".encode()) as copy:
        return b"".join(copy)
