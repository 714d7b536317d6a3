"""The command line inside the test's process, on the test's outbox."""

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from outbox.cli import cli
from outbox.core import Outbox
from tests.support.jobs import charge, stub_broker

__all__ = ["charge", "stub_broker"]

Command = Callable[..., Result]


@pytest.fixture
def command(box: Outbox) -> Command:
    """Run `command("list", "--status", "failed")`. Errors of the library are raised; `outbox.cli.main` prints them."""

    def run(*arguments: str, input: str | None = None) -> Result:
        return CliRunner().invoke(cli, arguments, input=input, catch_exceptions=False)

    return run
