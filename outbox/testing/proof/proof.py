"""The result of proving a handler, and its description for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from outbox.text import one_line, printable, shorten

# What a worker may do to a handler.
REPEATED, AT_ONCE, KILLED = "repeated", "at_once", "killed"
NAMES = {REPEATED: "when repeated", AT_ONCE: "when called twice at the same time", KILLED: "when killed"}

AS_IT_IS, WITH_INBOX, WITHOUT_INBOX = "as it is", "with the inbox", "without the inbox"
STATEMENT_SHOWN = 100


@dataclass(frozen=True)
class Weakness:
    """One scenario in which the handler is not safe."""

    kind: str
    # Such as "when killed after statement 3 of 5: INSERT INTO mail …".
    when: str
    # How the tables, or the end of the call, differ from those of a single call.
    differences: tuple[str, ...]


@dataclass
class Variant:
    """The handler as it is, inside the inbox, or without the inbox."""

    name: str
    weaknesses: list[Weakness] = field(default_factory=list)
    # Why it could not be proved.
    problem: str | None = None
    # How many scenarios of each kind were tried.
    tried: dict[str, int] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)
    # How many statements it was neither killed after nor made to wait after, because there are too many.
    untried: int = 0
    # Its calls outside the database.
    outside: list[str] = field(default_factory=list)
    # Columns that were not compared, as their values differ between any two calls.
    ignored: list[str] = field(default_factory=list)

    @property
    def is_safe(self) -> bool:
        return self.problem is None and not self.weaknesses

    @property
    def summary(self) -> str:
        """Return in one line when it is safe, and when it is not."""
        if self.problem is not None:
            return f"not proved: {self.problem}"
        weak = {each.kind for each in self.weaknesses}
        safe = [NAMES[kind] for kind in self.tried if kind not in weak]
        parts = [f"safe {', '.join(safe)}"] if safe else []
        parts += [f"not safe {NAMES[kind]}" for kind in self.tried if kind in weak]
        return "; ".join(parts)


@dataclass
class Proof:
    """The result of `outbox.testing.prove` for a handler with one event."""

    handler: str
    event: str
    variants: list[Variant]

    @property
    def is_safe(self) -> bool:
        """Return whether the handler, as it is, is safe in every scenario that was tried."""
        return self.variants[0].is_safe

    @property
    def safe_under(self) -> list[str]:
        """Return in which kinds of scenarios it is safe as it is: of "repeated", "at_once" and "killed"."""
        found = self.variants[0]
        weak = {each.kind for each in found.weaknesses}
        return [] if found.problem is not None else [kind for kind in found.tried if kind not in weak]

    def as_json(self) -> dict[str, Any]:
        """Return everything as values for JSON."""
        return {
            "handler": self.handler,
            "event": self.event,
            "safe": self.is_safe,
            "variants": [
                {
                    "name": each.name,
                    "safe": each.is_safe,
                    "summary": each.summary,
                    "problem": each.problem,
                    "tried": each.tried,
                    "statements": each.statements,
                    "untried": each.untried,
                    "outside": each.outside,
                    "ignored": each.ignored,
                    "weaknesses": [
                        {"kind": one.kind, "when": one.when, "differences": list(one.differences)}
                        for one in each.weaknesses
                    ],
                }
                for each in self.variants
            ],
        }

    def __str__(self) -> str:
        return "\n".join(printable(line, " ") for line in self._lines())

    def _lines(self) -> Iterator[str]:
        own, *others = self.variants
        yield f"{self.handler}, with {self.event}: {own.summary}"
        for weakness in own.weaknesses:
            yield f"  not safe {weakness.when}"
            yield from (f"      {line}" for line in weakness.differences)
        for other in others:
            yield f"  {other.name}: {other.summary}"
        if own.outside:
            yield f"  calls outside the database, which can't be compared: {', '.join(own.outside)}"
        if own.ignored:
            yield f"  not compared, as two single calls differ there: {', '.join(own.ignored)}"
        if own.problem is None and not own.statements:
            yield "  it runs no statement of its own: only its tables were compared"
        if own.untried:
            yield f"  it was not killed after the last {own.untried} of its {len(own.statements)} statements"


def shown_statement(statement: str) -> str:
    """Return a statement as one line, without its parameters."""
    return shorten(one_line(statement), STATEMENT_SHOWN)
