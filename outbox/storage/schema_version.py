"""One version of the tables: what it adds, and the statements that make it. `schema_versions.py` lists all of them."""

from __future__ import annotations

from dataclasses import dataclass

from outbox.table_names import Tables


@dataclass(frozen=True, slots=True)
class Version:
    """One step of the tables' history: what it adds, and the statements that make it."""

    number: int
    # What it adds, as the history and the log show it.
    what: str
    postgres: tuple[str, ...]
    sqlite: tuple[str, ...]

    def statements(self, kind: str, tables: Tables) -> tuple[str, ...]:
        """Return the statements that make this version; `kind` is "postgres" or "sqlite"."""
        templates = self.postgres if kind == "postgres" else self.sqlite
        return tuple(template.format_map(tables.placeholders) for template in templates)
