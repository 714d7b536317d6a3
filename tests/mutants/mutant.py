"""A mutant: the program with one line of it wrong, and the tests that must notice."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """`old` stands exactly once in `file`; each of `tests`, a file, a class or a test of pytest's, must turn red.

    A test may be named with its parameters (`test_it[sqlite]`), if with the mutant it waits until its patience is over.

    `also` are further changes, where a promise is kept twice: file, old text, new text.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    also: tuple[tuple[str, str, str], ...] = ()

    @property
    def changes(self) -> list[tuple[str, str, str]]:
        return [(self.file, self.old, self.new), *self.also]

    def misplaced(self, root: Path = ROOT) -> list[str]:
        """What is not there exactly once."""
        return [f"{file}: {old!r}" for file, old, _ in self.changes if (root / file).read_text().count(old) != 1]

    @contextmanager
    def applied(self, root: Path) -> Iterator[None]:
        """Wrong inside the block; everything is as before at its end."""
        originals = {file: (root / file).read_text() for file, _, _ in self.changes}
        try:
            for file, old, new in self.changes:
                path = root / file
                path.write_text(path.read_text().replace(old, new))
            yield
        finally:
            for file, text in originals.items():
                (root / file).write_text(text)
