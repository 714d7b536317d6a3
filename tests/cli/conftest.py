"""The command line inside the test's process, on the test's outbox."""

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from outbox.cli import cli
from outbox.core import Outbox

Outbox_ = Callable[..., Result]


@pytest.fixture
def command(box: Outbox) -> Outbox_:
    """`command("list", "--status", "failed")`; what our own errors are is for `outbox.cli.main` to tell."""

    def run(*arguments: str, input: str | None = None) -> Result:
        return CliRunner().invoke(cli, arguments, input=input, catch_exceptions=False)

    return run
