"""Import the module of a command only when the command is used.

The modules of all commands together import the whole library, the event loop and the HTTP client included. So
`outbox status` would spend half of its time on importing what other commands need.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping

import click

from outbox.cli.examples import add_examples


class LazyCommands(MutableMapping[str, click.Command]):
    """The commands by their names. A command is imported when it is looked up."""

    def __init__(self, places: dict[str, str], *, without_outbox: set[str]) -> None:
        """`places`: for each name `module:variable`. Those not `without_outbox` get the option --outbox."""
        self._places = places
        self._without_outbox = without_outbox
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            module, _, variable = self._places[name].partition(":")
            command: click.Command = getattr(importlib.import_module(f"outbox.cli.{module}"), variable)
            add_examples(command, name)
            if name not in self._without_outbox:
                from outbox.cli.options import add_outbox_option  # imports most of the library

                add_outbox_option(command)
            self._loaded[name] = command
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._places[name], self._loaded[name] = "", command

    def __delitem__(self, name: str) -> None:
        del self._places[name]
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places
