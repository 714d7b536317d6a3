"""Every statement has a template, and every template is used."""

from dataclasses import asdict

import pytest

from outbox.storage import statements
from outbox.storage.statements import SUBJECTS
from outbox.table_names import Tables

POSTGRES, SQLITE = statements.postgres(Tables()), statements.sqlite(Tables())

# They are parts of other templates.
PARTS = {
    "INSERT_COLUMNS", "CLAIMED_COLUMNS", "DESTINATIONS_VERSION", "ENDED", "INBOX_OLD", "IS_MADE_DUE", "ARCHIVED",
    "ATTEMPTS_ITEMS", "ATTEMPTS_SURPLUS", "ATTEMPTS_INSERT",
}  # fmt: skip


def test_every_statement_has_a_template_for_at_least_one_database() -> None:
    assert [name for name, text in asdict(POSTGRES).items() if not text and not getattr(SQLITE, name)] == []


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.__name__)
def test_every_template_is_a_statement_or_a_part_of_one(subject: object) -> None:
    names = {name.removesuffix("_POSTGRES").removesuffix("_SQLITE") for name in vars(subject) if name.isupper()}
    assert names - PARTS <= {name.upper() for name in asdict(POSTGRES)}


def test_what_only_one_database_needs_is_empty_for_the_other() -> None:
    assert (POSTGRES.due, SQLITE.insert_many, SQLITE.draw_numbers) == ("", "", "")
    assert SQLITE.due
