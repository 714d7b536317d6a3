"""A host with a public address: a webhook that may only reach public addresses does not reach the host itself."""

import subprocess
import sys

from tests.netns.network import Network
from tests.support.program import ROOT, environment
from tests.support.servers import PATIENCE_SECONDS

PUBLIC = "93.184.216.34"


def test_the_hosts_own_public_address_is_refused(network: Network) -> None:
    network.add_address(PUBLIC)
    command = network.command(sys.executable, "-m", "tests.netns.own_address", PUBLIC)
    done = subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    refused = f"not sent: {PUBLIC} resolves to {PUBLIC}, which is an address of this host"
    assert done.stdout.splitlines() == [
        "httpx True Delivered() 1",
        f"httpx False Retry(error='{refused}', not_before=None, http_status=None) 1",
        "curl True Delivered() 2",
        f"curl False Retry(error='{refused}', not_before=None, http_status=None) 2",
    ], done.stderr
