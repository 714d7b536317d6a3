"""The pytest plugin, as an application's tests use it: pytest inside pytest, each in a process of its own."""

import json
from pathlib import Path

import pytest

from tests.support.program import run_python
from tests.support.servers import Postgres

pytest_plugins = ["pytester"]

QUIET = ("-q", "-p", "no:cacheprovider", "-p", "no:valkey")

# An application: a database, a table, a handler, and a webhook that must not be called.
SHOP = """
import outbox
from outbox.storage.connect import open_database
from peewee import CharField, Model, SqliteDatabase

db = {database}
outbox.configure(database=db, max_attempts=7)
outbox.add_destination(outbox.Webhook("crm", "https://crm.invalid/hook", secret="whsec_" + "A" * 44))


class Order(Model):
    state = CharField()

    class Meta:
        database = db


@outbox.handler("order.placed", name="pay")
def pay(event):
    with db:
        Order.update(state="paid").where(Order.id == event.aggregate_id).execute()
        outbox.emit("Order", event.aggregate_id, "order.paid")


def place():
    with db.atomic():
        order = Order.create(state="new")
        outbox.emit("Order", order.id, "order.placed", {{"total": 20}})
    return order
"""

CONFTEST = """
import pytest
import shop


@pytest.fixture(scope="session", autouse=True)
def tables():
    shop.db.create_tables([shop.Order])


@pytest.fixture(autouse=True)
def rolled_back(outbox_box):
    return outbox_box
"""

TESTS = """
import threading
import outbox
import pytest
import shop
from outbox import testing

# The same keys in each of these tests: nothing of one is left for another.
@pytest.mark.parametrize("number", range(4))
def test_an_order_is_paid(outbox_events, outbox_deliver, number):
    order = shop.place()
    testing.assert_emitted("order.placed", aggregate=("Order", order.id), payload={"total": 20})
    assert outbox_deliver() == 2
    assert shop.Order.get_by_id(order.id).state == "paid"
    assert outbox_events.types == ["order.placed", "order.paid"]
    assert [event.event_type for event in testing.recorded("crm")] == ["order.placed", "order.paid"]
    assert (shop.Order.select().count(), outbox.OutboxEvent.select().count()) == (1, 2)
    assert [each.name for each in threading.enumerate() if each.name.startswith("outbox")] == []


@pytest.mark.outbox(max_attempts=2)
class TestMarkers:
    def test_the_application_s_settings_hold_unless_a_marker_changes_them(self, outbox_box):
        assert (outbox_box.settings.max_attempts, outbox_box.settings.dispatch) == (2, "off")

    @pytest.mark.outbox(max_attempts=3)
    def test_the_nearest_wins(self, outbox_box):
        assert outbox_box.settings.max_attempts == 3

    def test_what_is_registered_in_a_test_is_forgotten(self):
        outbox.handler("order.placed", name="temporary")(print)
        outbox.add_destination(outbox.Webhook("other", "https://other.invalid", secret="whsec_" + "A" * 44))
        assert testing.recorded("other") == []

    def test_as_here(self, outbox_box):
        assert list(outbox_box.registry.destinations) == ["crm", "pay"]


def test_elsewhere_they_are_the_application_s(outbox_box):
    assert outbox_box.settings.max_attempts == 7
"""

COMMITTING = """
import outbox
import pytest
import shop


@pytest.mark.outbox(rollback=False)
def test_it_commits(outbox_deliver):
    shop.place()
    assert not shop.db.in_transaction()
    assert outbox_deliver() == 2


def test_it_is_seen_here():
    assert shop.Order.select().count() == 1
"""


@pytest.fixture
def application(pytester: pytest.Pytester) -> pytest.Pytester:
    """The application on SQLite in memory."""
    pytester.makepyfile(shop=SHOP.format(database="SqliteDatabase(':memory:')"))
    pytester.makeconftest(CONFTEST)
    return pytester


def test_a_suite_of_a_few_lines_runs_rolled_back(application: pytest.Pytester) -> None:
    application.makepyfile(test_shop=TESTS)
    result = application.runpytest_subprocess(*QUIET, "-W", "error")
    result.assert_outcomes(passed=9)


def test_it_runs_under_xdist_with_a_database_for_each_process(
    pytester: pytest.Pytester, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # this process may be one of xdist's itself
    urls = {worker: postgres_server.create_database(f"shop_{worker}") for worker in ("gw0", "gw1")}
    database = f"open_database({urls}[__import__('os').environ.get('PYTEST_XDIST_WORKER', 'gw0')])"
    pytester.makepyfile(shop=SHOP.format(database=database), test_shop=TESTS)
    pytester.makeconftest(CONFTEST)
    result = pytester.runpytest_subprocess(*QUIET, "-n", "2")
    result.assert_outcomes(passed=9)


def test_a_marked_test_commits(application: pytest.Pytester) -> None:
    application.makepyfile(test_shop=COMMITTING)
    result = application.runpytest_subprocess(*QUIET)
    result.assert_outcomes(passed=2)


def test_without_an_application_it_is_sqlite_in_memory(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import outbox

        def test_it(outbox_box, outbox_deliver):
            outbox.ignore("order.placed")
            outbox.emit("Order", 1, "order.placed")
            assert (outbox_deliver(), outbox_box.database.database) == (1, ":memory:")
        """
    )
    result = pytester.runpytest_subprocess(*QUIET)
    result.assert_outcomes(passed=1)


def test_it_imports_nothing_until_it_is_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import json, pathlib, sys

        def test_it():
            names = [name for name in sys.modules if name.partition(".")[0] in ("outbox", "peewee", "dramatiq")]
            pathlib.Path("names.json").write_text(json.dumps(sorted(names)))
        """
    )
    pytester.runpytest_subprocess(*QUIET).assert_outcomes(passed=1)
    names = json.loads(Path(pytester.path / "names.json").read_text())
    assert names == ["outbox", "outbox.testing", "outbox.testing.plugin", "outbox.version"]


def test_the_facade_imports_nothing_by_itself_and_finds_every_name() -> None:
    loaded = run_python(
        "import outbox.testing, sys; print(*sorted(name for name in sys.modules if name.startswith('outbox')));"
        "print(all(getattr(outbox.testing, name) for name in outbox.testing.__all__))"
    )
    assert loaded.splitlines() == ["outbox outbox.testing outbox.version", "True"]
