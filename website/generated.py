"""Write the parts of the documentation that the code itself knows: the settings, and the commands with their options.

A page marks such a part with two comments. `python3 dev.py docs write` replaces what is between them, and a test fails
if that would change a page.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from outbox.cli import cli
from outbox.settings import PREFIX, Settings

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def settings_table() -> str:
    """Return a table of all settings."""
    rows = [
        f"| `{PREFIX}{field.name.upper()}` | {_shown(field.default)} | {field.metadata['meaning']} |"
        for field in dataclasses.fields(Settings)
    ]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])


def command_sections() -> str:
    """Return a section for each command of `outbox`: its usage, its help text, and its options."""
    return "\n\n".join(_sections("", cli.commands))


PARTS: dict[str, Callable[[], str]] = {"settings": settings_table, "commands": command_sections}


def with_parts(page: str) -> str:
    """Return a page with its generated parts as they should be."""
    return PART.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]()}\n\n{match[3]}", page)


def write() -> None:
    for path in sorted(REFERENCE.glob("*.md")):
        path.write_text(with_parts(path.read_text()))


def _shown(value: object) -> str:
    match value:
        case None | ():
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case float():
            return f"`{value:g}`"
        case _:
            return f"`{value}`"


def _sections(prefix: str, commands: Mapping[str, click.Command]) -> Iterator[str]:
    """Yield the sections of commands, each followed by those of its subcommands."""
    for name, command in sorted(commands.items()):
        yield _section(prefix + name, command)
        if isinstance(command, click.Group):
            yield from _sections(f"{prefix}{name} ", command.commands)


def _section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"outbox {name}", max_content_width=10_000)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = [f"## outbox {name}", "", "```console", f"$ {usage}", "```", "", _paragraphs(command.help or "")]
    options = [each for each in command.params if isinstance(each, click.Option)]
    if options:
        lines += ["", "| option | default | meaning |", "|---|---|---|", *(_row(each, context) for each in options)]
    return "\n".join(lines)


def _paragraphs(text: str) -> str:
    """Return a help text without the line breaks inside its paragraphs."""
    paragraphs = [" ".join(each.split()) for each in text.replace("\b\n", "").split("\n\n")]
    return "\n\n".join(each for each in paragraphs if each)


def _row(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    if not option.is_flag:
        names += f" {_value(option, context)}"
    return f"| {names} | {_default(option)} | {option.help or ''} |"


def _value(option: click.Option, context: click.Context) -> str:
    """Return what follows the option: the words that it allows, or what kind of value it takes."""
    if isinstance(option.type, click.Choice):
        return "of " + ", ".join(f"`{word}`" for word in option.type.choices)
    metavar = option.metavar or option.type.name.split()[0].upper()
    limits = getattr(option.type, "min", None)
    return f"`{metavar}`" + ("" if limits is None else f" from {limits:g}")


def _default(option: click.Option) -> str:
    shown: Any = option.show_default
    if isinstance(shown, str):
        return shown
    return f"`{option.default}`" if shown and option.default is not None else ""


if __name__ == "__main__":
    write()
