"""The doctor's checks of the connection to PostgreSQL."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from playhouse.pool import PooledPostgresqlDatabase

from outbox.admin.doctor.check import NOTE, OK
from outbox.core import Outbox
from outbox.settings import Settings
from tests.admin.doctor.findings import advice_of, finding_of
from tests.support.table import on_postgres


@pytest.fixture
def own_box(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[Outbox]:
    """Return an Outbox on a database that the application opens itself, with the arguments of the test."""
    given: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(postgres_url)
    database = PooledPostgresqlDatabase(given.pop("dbname"), prefer_psycopg3=True, **given, **request.param)
    yield Outbox(Settings(dispatch="off"), database=database)
    database.close_all()


@on_postgres
def test_a_database_that_the_library_opens_has_no_pooler_and_a_tcp_timeout(box: Outbox) -> None:
    assert finding_of(box, "pooler").level == OK
    found = finding_of(box, "network")
    assert (found.level, "after 15 s" in found.what) == (OK, True)


@pytest.mark.parametrize("own_box", [{}, {"tcp_user_timeout": 0}], indirect=True)
def test_a_database_that_the_application_opens_without_a_tcp_timeout_is_a_note(own_box: Outbox) -> None:
    found = finding_of(own_box, "network")
    assert (found.level, "host disappears" in found.what) == (NOTE, True)
    assert "tcp_user_timeout=15000" in advice_of(found)


@pytest.mark.parametrize("own_box", [{"tcp_user_timeout": 15_000}], indirect=True)
def test_the_advised_tcp_timeout_is_fine(own_box: Outbox) -> None:
    assert finding_of(own_box, "network").level == OK
