"""The package's façade: every public name, and no other, found where it is defined and imported when it is used."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

import outbox
from tests.support.program import ROOT, run_python

FACADES = [ROOT / "outbox" / "__init__.py", ROOT / "outbox" / "inbox" / "__init__.py"]


@pytest.mark.parametrize("name", outbox.__all__)
def test_every_public_name_is_found(name: str) -> None:
    assert getattr(outbox, name) is not None


def test_dir_shows_the_public_names_and_the_version_alone() -> None:
    assert dir(outbox) == sorted([*outbox.__all__, "__version__"])


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'outbox' has no attribute 'emitt'"):
        outbox.emitt  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'outbox\.inbox' has no attribute 'twice'"):
        outbox.inbox.twice  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("facade", FACADES, ids=["outbox", "inbox"])
def test_a_type_checker_sees_the_names_that_can_be_used(facade: Path) -> None:
    tree = ast.parse(facade.read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.name for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    names = next(
        node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert seen == set(ast.literal_eval(names.value))


def test_importing_the_package_imports_none_of_it() -> None:
    loaded = run_python("import outbox, sys; print(*sorted(name for name in sys.modules if name.startswith('outbox')))")
    assert loaded.split() == ["outbox", "outbox.version"]


def test_the_version_is_that_of_the_project() -> None:
    assert outbox.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_libraries_of_message_brokers_are_imported_when_one_is_used() -> None:
    """Each is an extra, and takes time and memory."""
    code = (
        "import outbox, outbox.cli, outbox.configured_destinations, sys; names = 'pika', 'nats', 'confluent_kafka'\n"
        "outbox.Bus, outbox.Kafka, outbox.Nats, outbox.Rabbit, outbox.Consumer\n"
        "print(*[name for name in names if name in sys.modules], sep=',')\n"
        "outbox.Rabbit('bus', url='amqp://localhost', exchange='')\n"
        "print(*[name for name in names if name in sys.modules], sep=',')\n"
    )
    assert run_python(code).splitlines() == ["", "pika"]
