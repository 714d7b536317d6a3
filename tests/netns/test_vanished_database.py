"""A database host that vanishes while a statement is on its way."""

import sys
from pathlib import Path

from tests.netns.network import Network
from tests.support.processes import Program
from tests.support.program import environment
from tests.support.servers import wait_until


def test_a_statement_fails_within_a_minute_and_the_next_connection_works_when_the_host_is_back(
    network: Network, far_url: str, tmp_path: Path
) -> None:
    """Without tcp_user_timeout the system gives up after a quarter of an hour."""
    go = tmp_path / "go"
    command = network.command(sys.executable, "-m", "tests.netns.client", far_url, go)
    client = Program(command, environment(), tmp_path / "client.log")
    try:
        assert wait_until(lambda: "connected" in client.said()), client.said()
        network.cut()
        go.touch()
        assert wait_until(lambda: "gone: " in client.said()), client.said()
        network.mend()
        assert wait_until(lambda: "connected again" in client.said()), client.said()
        assert client.wait() == 0
    finally:
        client.kill()
