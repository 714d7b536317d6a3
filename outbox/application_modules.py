"""Import the application's modules that are named on the command line (`outbox worker your.module`).

These modules contain the application's handlers, and may call `outbox.configure`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

from outbox.errors import RegistrationError


def import_modules(names: Iterable[str]) -> None:
    """Import these modules. They are also searched in the working directory.

    Without modules the working directory is not searched. Otherwise a file in it, such as one named `redis.py` in a
    folder that other users can write to, would be imported in place of an installed package.
    """
    names = list(names)
    if names:
        sys.path.insert(0, str(Path.cwd()))
    for name in names:
        _import(name)


def _import(name: str) -> None:
    if name.endswith(".py") or "/" in name:
        dotted = name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise RegistrationError(f"{name!r} is a path. Name the module as Python would import it: {dotted}")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise  # the module was found, but a module that it imports was not
        raise RegistrationError(
            f"There is no module {name!r} in {Path.cwd()} or among the installed packages. "
            "Name the module as Python would import it."
        ) from None
