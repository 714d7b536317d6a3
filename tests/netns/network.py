"""A client on another host, so to speak: in a network namespace of its own, and a cable that can be cut.

Packets are lost as they are when a host loses its power: nothing answers, and nothing says so.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.servers import ServerError

# Somebody else's hardware address: what is sent there is dropped without a word.
NOBODY = "02:00:00:00:00:09"


class Network:
    def __init__(self) -> None:
        self._ip = ip_program()
        name = secrets.token_hex(3)
        self.namespace, self._here, self._there = f"outbox-{name}", f"ob{name}a", f"ob{name}b"
        self._prefix = f"198.18.{secrets.randbelow(256)}"  # kept free for tests of networks
        self.server = f"{self._prefix}.1"

    def command(self, *command: str | Path) -> list[str | Path]:
        """Return a command line that runs a program on the other host."""
        return [self._ip, "netns", "exec", self.namespace, *command]

    def cut(self) -> None:
        self._inside("neigh", "replace", self.server, "lladdr", NOBODY, "dev", self._there, "nud", "permanent")

    def mend(self) -> None:
        self._inside("neigh", "del", self.server, "dev", self._there)

    def add_address(self, address: str) -> None:
        """Give the other host a further address of its own."""
        self._inside("link", "set", "lo", "up")
        self._inside("addr", "add", f"{address}/32", "dev", self._there)

    @contextlib.contextmanager
    def laid(self) -> Iterator[None]:
        self._run("netns", "add", self.namespace)
        try:
            self._run("link", "add", self._here, "type", "veth", "peer", "name", self._there, "netns", self.namespace)
            self._run("addr", "add", f"{self.server}/24", "dev", self._here)
            self._run("link", "set", self._here, "up")
            self._inside("addr", "add", f"{self._prefix}.2/24", "dev", self._there)
            self._inside("link", "set", self._there, "up")
            yield
        finally:
            self._run("netns", "del", self.namespace)  # and both ends of the cable with it

    def _inside(self, *arguments: str) -> None:
        self._run("-n", self.namespace, *arguments)

    def _run(self, *arguments: str) -> None:
        done = subprocess.run([self._ip, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServerError(f"ip {' '.join(arguments)} failed: {done.stderr.strip()}")


def ip_program() -> str:
    if os.geteuid() != 0:
        raise ServerError("network namespaces are made by root only: run these tests as root")
    found = shutil.which("ip", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if found is None:
        raise ServerError("no program `ip` found: install it (Debian: apt install iproute2)")
    return found
