"""The layers of the package: which folder may import which.

The import graph counts every import: at the top of a module, inside a function, and for type checkers only. A cycle or
an import of a higher layer is an error, wherever it stands: a function-level import only hides it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from tests.support.program import ROOT

# From the lowest to the highest. A module may import its own layer and those before it.
LAYERS = [
    ["version"],
    ["errors"],
    ["encryption"],
    [
        "text",
        "setting_arguments",
        "setting_values",
        "table_names",
        "background_thread",
        "event_loop_thread",
        "crash_points",
        "application_modules",
        "stop_signal",
    ],
    ["settings"],
    ["storage"],
    ["telemetry"],
    ["notify"],
    ["events"],
    ["destinations"],
    ["webhooks", "buses"],
    ["throttle"],
    ["delivery"],
    ["operations"],
    ["inbox"],
    ["configured_destinations", "configured_dispatch"],
    ["core"],
    ["current_outbox"],
    ["current_inbox"],
    ["consumer"],
    ["admin"],
    ["dramatiq"],
    ["scheduler"],
    ["testing"],
    ["cli"],
]
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# They offer the names of other modules to users; no module of the package imports anything from them.
FACADES = {
    "outbox",
    "outbox.inbox",
    "outbox.webhooks",
    "outbox.consumer",
    "outbox.dramatiq",
    "outbox.admin.web",
    "outbox.testing",
}


def modules() -> dict[str, Path]:
    found = {}
    for top in ("outbox", "jobs", "scheduler"):
        for path in (ROOT / top).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name] = path
    return found


MODULES = modules()


def imports_of(path: Path) -> Iterator[str]:
    """Yield the module behind each import, whatever it is named by."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports are not used here"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else str(node.module)


@functools.cache
def graph() -> dict[str, set[str]]:
    """Return what each module imports. Each of pytest's processes imports this file, and one of them asks."""
    return {name: {each for each in imports_of(path) if each in MODULES} for name, path in MODULES.items()}


def layer_of(module: str) -> str:
    return module.split(".")[1]


def test_every_module_belongs_to_a_layer() -> None:
    inside = {name for name in MODULES if name.startswith("outbox.")}
    assert {layer_of(name) for name in inside} <= set(RANKS)


def test_no_module_imports_a_higher_layer() -> None:
    upward = [
        f"{name} imports {other}"
        for name, others in graph().items()
        for other in others
        if name.startswith("outbox.")
        and name not in FACADES
        and (not other.startswith("outbox.") or RANKS[layer_of(other)] > RANKS[layer_of(name)])
    ]
    assert sorted(upward) == []


def test_no_modules_import_each_other() -> None:
    assert cycles({name: others for name, others in graph().items() if name not in FACADES}) == []


def test_no_module_inside_imports_from_a_facade() -> None:
    found = [
        f"{name} imports {other}"
        for name, others in graph().items()
        for other in others & FACADES
        if name.startswith("outbox.") and name not in FACADES
    ]
    assert sorted(found) == []


def test_nothing_imports_the_front_doors_or_the_command_line() -> None:
    found = [
        f"{name} imports {other}"
        for name, others in graph().items()
        for other in others
        if (other.split(".")[0] in ("jobs", "scheduler") and name.split(".")[0] == "outbox")
        or (other.startswith("outbox.cli") and not name.startswith("outbox.cli"))
    ]
    assert sorted(found) == []


def test_the_test_finds_cycles_and_hidden_imports(tmp_path: Path) -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]
    assert cycles({"a": {"b"}, "b": set()}) == []
    source = "def f():\n    from outbox import settings\n\nif TYPE_CHECKING:\n    from outbox.core import Outbox\n"
    (tmp_path / "module.py").write_text(source)
    assert set(imports_of(tmp_path / "module.py")) == {"outbox.settings", "outbox.core"}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules in which each imports, directly or not, every other."""
    reachable = {name: _reachable(graph, name) for name in graph}
    groups = {
        tuple(sorted({name, *(other for other in reachable[name] if name in reachable.get(other, ()))}))
        for name in graph
        if name in reachable[name]
    }
    return [list(group) for group in sorted(groups)]


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found
