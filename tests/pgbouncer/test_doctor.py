"""The doctor recognises a pooler, and says what to set."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from outbox.admin.doctor.check import NOTE, OK, PROBLEM, Check, Context, Finding, ok
from outbox.admin.doctor.run_checks import run_checks
from outbox.core import Outbox
from outbox.settings import Settings
from tests.admin.doctor.findings import advice_of, finding_of
from tests.pgbouncer.conftest import MakePooler


class Boxes:
    """Outboxes, closed at the end."""

    def __init__(self) -> None:
        self.databases: list[Any] = []

    def __call__(self, url: str, *, prepared_statements: bool = True) -> Outbox:
        box = Outbox(Settings(database_url=url, prepared_statements=prepared_statements, dispatch="off"))
        self.databases.append(box.database)
        return box


@pytest.fixture
def boxes() -> Iterator[Boxes]:
    made = Boxes()
    yield made
    for database in made.databases:
        database.close_all()


def test_transaction_mode_with_prepared_statements_is_a_problem(boxes: Boxes, pooled_url: str) -> None:
    found = finding_of(boxes(pooled_url), "pooler")
    assert (found.level, "pool_mode = transaction" in found.what) == (PROBLEM, True)
    assert "OUTBOX_PREPARED_STATEMENTS=false" in advice_of(found)
    assert "prepare_threshold=None" in advice_of(found)


def test_what_is_advised_makes_it_well(boxes: Boxes, pooled_url: str) -> None:
    assert finding_of(boxes(pooled_url, prepared_statements=False), "pooler").level == OK
    assert finding_of(boxes(f"{pooled_url}?prepared_statements=false"), "pooler").level == OK


def test_session_mode_is_worth_a_note(boxes: Boxes, make_pooler: MakePooler) -> None:
    found = finding_of(boxes(make_pooler("session")), "pooler")
    assert (found.level, "pool_mode = session" in found.what) == (NOTE, True)
    assert finding_of(boxes(make_pooler("session"), prepared_statements=False), "pooler").level == OK


def test_without_a_pooler_all_is_well(boxes: Boxes, postgres_url: str) -> None:
    assert finding_of(boxes(postgres_url), "pooler").level == OK


def test_the_time_limit_of_a_check_reaches_no_other_client(boxes: Boxes, pooled_url: str) -> None:
    seen: list[tuple[str, ...]] = []

    def look(context: Context) -> Iterator[Finding]:
        seen.extend(context.rows("SHOW statement_timeout"))
        with psycopg.connect(pooled_url, autocommit=True, prepare_threshold=None) as other:
            seen.extend(other.execute("SHOW statement_timeout").fetchall())
        yield ok("looked")

    run_checks(boxes(pooled_url, prepared_statements=False), checks=[Check("probe", look, ("database",))])
    assert seen == [("10s",), ("0",)]


def test_the_check_leaves_nothing_on_a_connection_that_others_use_next(boxes: Boxes, pooled_url: str) -> None:
    finding_of(boxes(pooled_url), "pooler")
    with psycopg.connect(pooled_url, autocommit=True, prepare_threshold=None) as other:
        assert other.execute("SELECT name FROM pg_prepared_statements").fetchall() == []
