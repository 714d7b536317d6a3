"""Commands are imported when they are used, so that each starts quickly."""

import pytest

from outbox.cli import COMMANDS, cli
from tests.support.program import run_python


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_is_found_by_its_own_name(name: str) -> None:
    assert cli.commands[name].name == name


def test_one_does_not_import_what_others_need() -> None:
    run_python(
        """
import sys
from outbox.cli import cli
cli(["version"], standalone_mode=False)
assert "outbox.core" not in sys.modules
cli.commands["status"]
others = {"httpx", "dramatiq", "outbox.cli.consume", "outbox.buses.kafka", "outbox.webhooks.webhook"}
found = sys.modules.keys() & others
assert not found, found
"""
    )
