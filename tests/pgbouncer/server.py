"""A PgBouncer of our own, in front of a PostgreSQL server: `with PgBouncerServer(url) as server`."""

import os
import shutil
import signal
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg

from tests.support.servers import PATIENCE_SECONDS, Process, ServerError, unprivileged_user

PROGRAM_VARIABLE = "OUTBOX_TEST_PGBOUNCER"
FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin")

# Fewer server connections than the tests have threads: transactions of one client go over different ones.
CONFIGURATION = """
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = plain
auth_file = {folder}/users
pool_mode = {pool_mode}
default_pool_size = 4
max_client_conn = 300
"""


class PgBouncerServer(Process):
    fast = signal.SIGINT
    immediate = signal.SIGTERM

    def __init__(self, postgres_url: str, *, pool_mode: str = "transaction") -> None:
        self.program = pgbouncer_program()
        super().__init__(user=unprivileged_user())  # it refuses to run as root
        behind = urlsplit(postgres_url)
        user, password = (unquote(part or "") for part in (behind.username, behind.password))
        self.url = behind._replace(netloc=f"{behind.netloc.rpartition('@')[0]}@127.0.0.1:{self.port}").geturl()
        self._write("users", f'"{user}" "{password}"\n')
        self._write(
            "pgbouncer.ini",
            CONFIGURATION.format(
                host=behind.hostname,
                port=behind.port or 5432,
                listen_port=self.port,
                folder=self.folder,
                pool_mode=pool_mode,
            ),
        )

    def _write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.write_text(text)
        if self._user:
            for path in (self.folder, file):
                os.chown(path, self._user["user"], self._user["group"])

    def command(self) -> list[str | Path]:
        return [self.program, self.folder / "pgbouncer.ini"]

    def ping(self) -> None:
        with psycopg.connect(self.url, connect_timeout=PATIENCE_SECONDS, prepare_threshold=None) as connection:
            connection.execute("SELECT 1")


def pgbouncer_program() -> Path:
    given = os.environ.get(PROGRAM_VARIABLE)
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *FOLDERS])
    found = shutil.which("pgbouncer" if given is None else given, path=path)
    if found is None:
        raise ServerError(
            f"no PgBouncer found: install it (Debian: apt install pgbouncer), or set {PROGRAM_VARIABLE} to the program"
        )
    return Path(found)
