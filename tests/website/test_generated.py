"""The parts of the reference that the code writes are up to date."""

import dataclasses
from pathlib import Path

import pytest

from outbox.cli import cli
from outbox.settings import DEFAULT_DATABASE_URL, PREFIX, Settings
from website.generated import PART, PARTS, REFERENCE, command_sections, settings_table, with_parts

PAGES = [page for page in sorted(REFERENCE.glob("*.md")) if PART.search(page.read_text())]


def test_every_part_is_on_a_page() -> None:
    found = [match[2] for page in PAGES for match in PART.finditer(page.read_text())]
    assert sorted(found) == sorted(PARTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_generated_is_up_to_date(page: Path) -> None:
    assert page.read_text() == with_parts(page.read_text()), "run: python3 dev.py docs write"


def test_the_settings_table_has_every_setting_and_its_default() -> None:
    table = settings_table()
    for field in dataclasses.fields(Settings):
        assert f"| `{PREFIX}{field.name.upper()}` | " in table
    assert f"`{DEFAULT_DATABASE_URL}`" in table


def test_the_commands_are_there_with_all_their_options() -> None:
    text = command_sections()
    for name, command in cli.commands.items():
        section = text.partition(f"## outbox {name}\n")[2].partition("\n## ")[0]
        options = [option for param in command.params for option in param.opts if option.startswith("-")]
        assert [option for option in options if f"`{option}`" not in section] == []
