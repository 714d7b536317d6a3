"""The help of each command has examples, and they can be run as they are."""

import shlex

import click
import pytest

from outbox.cli import cli
from outbox.cli.examples import EXAMPLES


def test_every_command_has_examples() -> None:
    assert sorted(EXAMPLES) == sorted(cli.commands)


@pytest.mark.parametrize("call", [call for examples in EXAMPLES.values() for call, _ in examples])
def test_an_example_is_understood(call: str) -> None:
    program, name, *arguments = shlex.split(call.removeprefix('eval "$(').removesuffix(')"'))
    assert program == "outbox"
    # This parses the arguments, checks their values, and runs nothing.
    command = cli.commands[name]
    if isinstance(command, click.Group) and arguments:
        subcommand, *arguments = arguments
        command = command.commands[subcommand]
    command.make_context(name, arguments)


def test_the_examples_are_printed_at_the_end_of_the_help() -> None:
    command = cli.commands["pause"]
    with command.make_context("pause", ["crm"]) as context:
        text = command.get_help(context)
    lines = [line.strip() for line in text.splitlines()]
    first = lines.index('outbox pause crm --for 30m --reason "migration of crm"')
    assert (lines[first - 1], lines[first + 1]) == ("Examples:", "send crm nothing for half an hour")
