"""What lies between a process and PostgreSQL."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from playhouse.pool import PooledPostgresqlDatabase

from outbox.admin.doctor.check import NOTE, OK
from outbox.core import Outbox
from outbox.settings import Settings
from tests.admin.doctor.findings import advice_of, finding_of
from tests.table import on_postgres


@pytest.fixture
def own_box(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[Outbox]:
    """On a database that the application opens itself, with the arguments that the test gives."""
    given: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(postgres_url)
    database = PooledPostgresqlDatabase(given.pop("dbname"), prefer_psycopg3=True, **given, **request.param)
    yield Outbox(Settings(dispatch="off"), database=database)
    database.close_all()


@on_postgres
def test_a_database_of_ours_has_no_pooler_and_notices_a_host_that_vanishes(box: Outbox) -> None:
    assert finding_of(box, "pooler").level == OK
    found = finding_of(box, "network")
    assert (found.level, "after 15 s" in found.what) == (OK, True)


@pytest.mark.parametrize("own_box", [{}, {"tcp_user_timeout": 0}], indirect=True)
def test_one_of_the_applications_without_a_limit_is_worth_a_note(own_box: Outbox) -> None:
    found = finding_of(own_box, "network")
    assert (found.level, "vanish" in found.what) == (NOTE, True)
    assert "tcp_user_timeout=15000" in advice_of(found)


@pytest.mark.parametrize("own_box", [{"tcp_user_timeout": 15_000}], indirect=True)
def test_what_is_advised_makes_it_well(own_box: Outbox) -> None:
    assert finding_of(own_box, "network").level == OK
