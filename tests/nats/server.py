"""A NATS of our own with JetStream: `with NatsServer() as server`."""

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client

from tests.support.servers import PATIENCE_SECONDS, Process, ServerError

T = TypeVar("T")

PROGRAM_VARIABLE = "OUTBOX_TEST_NATS"
PROGRAMS = ("nats-server", "/usr/sbin/nats-server", "/opt/homebrew/bin/nats-server")
# The largest message that it takes, in bytes, headers included.
LARGEST_MESSAGE = 100_000
# The name, and the password, of a user who may publish to all subjects but those that begin with `events.secret.`.
RESTRICTED = "restricted"

CONFIGURATION = """
listen: "127.0.0.1:{port}"
server_name: "outbox-{port}"
max_payload: {largest_message}
jetstream {{ store_dir: "{folder}", max_mem: 64M, max_file: 256M }}
authorization {{
    users: [
        {{ user: outbox, password: outbox }}
        {{ user: {restricted}, password: {restricted}, permissions: {{ publish: {{ deny: "events.secret.>" }} }} }}
    ]
}}
"""


class NatsServer(Process):
    fast = signal.SIGTERM
    immediate = signal.SIGKILL

    def __init__(self) -> None:
        self.program = nats_program()
        super().__init__()
        self.url = f"nats://outbox:outbox@127.0.0.1:{self.port}"
        (self.folder / "nats.conf").write_text(
            CONFIGURATION.format(
                port=self.port, largest_message=LARGEST_MESSAGE, folder=self.folder / "data", restricted=RESTRICTED
            )
        )

    def command(self) -> list[str | Path]:
        return [self.program, "-c", self.folder / "nats.conf"]

    def ping(self) -> None:
        self.ask(lambda client: client.jetstream().account_info())

    def ask(self, what: Callable[[Any], Awaitable[T]]) -> T:
        """Return what a function that gets a client of nats-py returns."""

        async def run() -> T:
            client = Client()
            await client.connect(
                self.url, allow_reconnect=False, max_reconnect_attempts=1, reconnect_time_wait=0, error_cb=ignore
            )
            try:
                return await what(client)
            finally:
                await client.close()

        return asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))

    def answers(self) -> bool:
        try:
            self.ping()
        except (OSError, nats.errors.Error):
            return False
        return True


async def ignore(error: Exception) -> None:
    """Keep nats-py from logging what is expected while the server starts."""


def nats_program() -> Path:
    given = os.environ.get(PROGRAM_VARIABLE)
    for name in PROGRAMS if given is None else (given,):
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    raise ServerError(
        f"no NATS found: install it (Debian: apt install nats-server), or set {PROGRAM_VARIABLE} to the program"
    )
