"""A RabbitMQ of our own: `with RabbitmqServer() as server`."""

import base64
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pika
import pika.exceptions

from tests.support.servers import PATIENCE_SECONDS, Process, ServerError, free_port

PROGRAM_VARIABLE = "OUTBOX_TEST_RABBITMQ"
# The one on the PATH of Debian runs as the user rabbitmq, in that user's folder; the first of these is behind it.
PROGRAMS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/opt/homebrew/sbin/rabbitmq-server", "rabbitmq-server")
EPMD_FOLDERS = ("/usr/lib/erlang/bin", "/opt/homebrew/bin", "/usr/local/bin")

# How long a command to the server may take: each starts an Erlang of its own, which takes long on a busy machine.
CONTROL_SECONDS = 180

# The largest message that it takes, in bytes.
LARGEST_MESSAGE = 100_000
# The name, and the password, of a user who may publish to `amq.topic` with routing keys that begin with `order.`.
RESTRICTED = "restricted"

CONFIGURATION = """
listeners.tcp.1 = 127.0.0.1:{port}
log.console = true
log.console.level = warning
log.file = false
max_message_size = {largest_message}
load_definitions = {definitions}
"""


def definitions() -> dict[str, Any]:
    """Return the users and what each of them may do."""
    everything = {"configure": ".*", "write": ".*", "read": ".*", "vhost": "/"}
    allowed = {"exchange": "amq.topic", "write": "^order[.]", "read": ".*", "vhost": "/"}
    return {
        "vhosts": [{"name": "/"}],
        "users": [{"name": name, "password_hash": password_hash(name), "tags": ""} for name in ("guest", RESTRICTED)],
        "permissions": [{"user": name, **everything} for name in ("guest", RESTRICTED)],
        "topic_permissions": [{"user": RESTRICTED, **allowed}],
    }


def password_hash(password: str) -> str:
    """Return the hash as RabbitMQ stores it: four bytes of salt, and SHA-256 of salt and password."""
    salt = b"salt"
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


class RabbitmqServer(Process):
    """It needs a second program, Erlang's `epmd`, which would otherwise be started in the background for good."""

    fast = signal.SIGTERM
    immediate = signal.SIGKILL

    def __init__(self) -> None:
        self.program, self.epmd_program = rabbitmq_program(), epmd_program()
        super().__init__()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"
        self.epmd_port, self.distribution_port = free_port(), free_port()
        (self.folder / "definitions.json").write_text(json.dumps(definitions()))
        (self.folder / "rabbitmq.conf").write_text(
            CONFIGURATION.format(
                port=self.port, largest_message=LARGEST_MESSAGE, definitions=self.folder / "definitions.json"
            )
        )
        (self.folder / "enabled_plugins").write_text("[].\n")
        (self.folder / "rabbitmq-env.conf").touch()
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),  # where the Erlang cookie is written
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.epmd_port),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_NODENAME": f"outbox-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_LOGS": "-",
            # The Erlang machine in place of the script, so that signals reach it.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-noinput -kernel inet_dist_use_interface {127,0,0,1} +sbwt none +S 2:2"
            ),
        }

    def command(self) -> list[str | Path]:
        assignments = [f"{name}={value}" for name, value in self.environment.items()]
        return ["/usr/bin/env", "-i", *assignments, self.program]

    def start(self) -> None:
        if self._epmd is None:
            with self._log.open("ab") as log:
                self._epmd = subprocess.Popen(
                    [self.epmd_program, "-address", "127.0.0.1", "-port", str(self.epmd_port)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    start_new_session=True,
                )
        super().start()

    def close(self) -> None:
        self.stop(immediate=True)
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(PATIENCE_SECONDS)
            self._epmd = None
            self._tell_guard()
        super().close()

    def control(self, *command: str) -> None:
        """Run a command of `rabbitmqctl`."""
        program = self.program.resolve().with_name("rabbitmqctl")
        settings = {
            name: value for name, value in self.environment.items() if name != "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"
        }
        subprocess.run(
            [program, *command], env=settings, cwd=self.folder, capture_output=True, check=True, timeout=CONTROL_SECONDS
        )

    def ping(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), timeout=5).close()  # pika would log that nothing listens yet
        with pika.BlockingConnection(pika.URLParameters(f"{self.url}?socket_timeout=5&blocked_connection_timeout=5")):
            pass

    def answers(self) -> bool:
        try:
            self.ping()
        except (OSError, pika.exceptions.AMQPError):
            return False
        return True

    def _tell_guard(self, *pids: int) -> None:
        epmd = [] if self._epmd is None else [self._epmd.pid]
        super()._tell_guard(*pids, *epmd)


def rabbitmq_program() -> Path:
    given = os.environ.get(PROGRAM_VARIABLE)
    for name in PROGRAMS if given is None else (given,):
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    raise ServerError(
        f"no RabbitMQ found: install it (Debian: apt install rabbitmq-server), or set {PROGRAM_VARIABLE} to the program"
    )


def epmd_program() -> Path:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *EPMD_FOLDERS])
    found = shutil.which("epmd", path=path)
    if found is None:
        raise ServerError("Erlang's epmd, which RabbitMQ needs, is not on the PATH")
    return Path(found)
