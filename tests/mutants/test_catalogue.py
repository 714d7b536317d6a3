"""The mutation check is a command of its own; here only that it would still find what it breaks."""

from collections import Counter

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_breaks_is_there_exactly_once(mutant: Mutant) -> None:
    assert mutant.misplaced() == []
    assert all(old != new for _, old, new in mutant.changes)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_a_program_that_python_can_read(mutant: Mutant) -> None:
    texts = {file: (ROOT / file).read_text() for file, _, _ in mutant.changes}
    for file, old, new in mutant.changes:
        texts[file] = texts[file].replace(old, new)
    programs = [compile(text, file, "exec") for file, text in texts.items() if file.endswith(".py")]
    assert len(programs) == sum(file.endswith(".py") for file in texts)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_that_must_notice_are_there(mutant: Mutant) -> None:
    assert mutant.tests
    for test in mutant.tests:
        file, *names = test.split("::")
        text = (ROOT / file).read_text()
        for name in names:
            without_parameters = name.partition("[")[0]
            assert f"class {without_parameters}" in text or f"def {without_parameters}(" in text


def test_each_has_a_name_of_its_own() -> None:
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
