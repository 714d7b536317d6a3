"""Every check of the doctor is documented, and the commands and settings in its advice exist."""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.core import ParameterSource

import outbox
from outbox.admin.doctor import check as doctor
from outbox.admin.doctor.check import NOTE, OK, note, ok
from outbox.admin.doctor.run_checks import CHECKS
from outbox.cli import cli
from outbox.dramatiq.sweep_check import SWEEP
from outbox.settings import PREFIX, Settings
from tests.admin.doctor.unsafe_settings import UNSAFE
from tests.support.program import ROOT

SOURCES = sorted(Path(doctor.__file__).parent.glob("*.py"))
PAGE = ROOT / "docs" / "reference" / "doctor.md"


def texts(source: Path) -> Iterator[str]:
    """Yield every string of a source file, with `…` for the parts that an f-string fills in."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


SAID = [text for source in SOURCES for text in texts(source)]
COMMANDS = sorted({command for text in SAID for command in re.findall(r"`(outbox [^`]*)`", text)})


def test_commands_are_found_in_the_advice() -> None:
    assert {"outbox init", "outbox list --status failed", "outbox retry", "outbox doctor -m your.module"} <= set(
        COMMANDS
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_is_advised_exists_with_its_options(command: str) -> None:
    # What an f-string fills in is the id of an event or a name, and an id is a name as well.
    _, name, *arguments = shlex.split(command.replace("…", "0198c0de-0000-7000-8000-000000000000"))
    found: click.Command = cli.commands[name]
    while isinstance(found, click.Group) and arguments:
        name = arguments.pop(0)
        found = found.commands[name]
    context = found.make_context(name, list(arguments), resilient_parsing=False)
    sources = {context.get_parameter_source(str(each.name)) for each in found.params}
    assert (ParameterSource.COMMANDLINE in sources) == bool(arguments)


def test_every_setting_that_is_named_exists() -> None:
    known = {PREFIX + field.name.upper() for field in fields(Settings)}
    named = {name for text in SAID for name in re.findall(r"OUTBOX_[A-Z_]*[A-Z]\b", text)}
    assert len(named) > 10
    assert named <= known


def test_every_function_that_is_advised_exists() -> None:
    named = {name for text in SAID for name in re.findall(r"`outbox\.([a-z_.]+)\(", text)}
    assert {"ignore", "webhooks.new_secret"} <= named
    for name in named:
        found: object = outbox
        for part in name.split("."):
            found = getattr(found, part)
        assert callable(found)


def test_the_programs_that_are_advised_exist() -> None:
    assert any("outbox worker your.module" in text for text in SAID)
    assert any("outbox scheduler" in text for text in SAID)
    assert {"worker", "scheduler"} <= set(cli.commands)


@pytest.mark.parametrize("check", [check.name for check in (*CHECKS, SWEEP)])
def test_every_check_is_documented(check: str) -> None:
    assert PAGE.read_text().count(f"\n### `{check}`\n") == 1


def test_nothing_else_is_documented() -> None:
    assert set(re.findall(r"^### `(\w+)`$", PAGE.read_text(), re.MULTILINE)) == {
        check.name for check in (*CHECKS, SWEEP)
    }


def test_every_setting_that_is_looked_at_has_a_row() -> None:
    for variable in {variable for variable, _, _ in UNSAFE}:
        assert f"`{variable}`" in PAGE.read_text() or variable == "OUTBOX_MAX_PAYLOAD_BYTES"


def test_what_a_check_needs_comes_before_it() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for number, check in enumerate(CHECKS):
        assert set(check.needs) <= set(names[:number])


def test_only_good_news_come_without_advice() -> None:
    assert [ok("").level, note("").level] == [OK, NOTE]
    for kind in (doctor.warning, doctor.problem):
        with pytest.raises(TypeError):
            kind("something is wrong")  # type: ignore[call-arg]
