"""What docs/how-to/permissions.md grants is enough for each role, and each is refused what it was not granted."""

import re
from collections.abc import Callable
from typing import Any

import dramatiq
import peewee
import psycopg
import pytest
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox import OutboxEvent
from outbox.admin import queries
from outbox.admin.doctor.run_checks import run_checks
from outbox.admin.metrics import families
from outbox.admin.overview import overview
from outbox.admin.periodic_jobs import read_periodic_jobs
from outbox.core import Outbox
from outbox.destinations.periodic_job import PeriodicFunction, PeriodicJob
from outbox.destinations.retirement import retire
from outbox.dramatiq.send import store_message
from outbox.operations import actions, periodic_jobs
from outbox.operations.filters import Filter
from outbox.operations.periodic_jobs import FORGET, PAUSE, RESUME, RUN_NOW
from outbox.scheduler.schedule import make_schedule
from outbox.scheduler.store_runs import StoreRuns
from outbox.telemetry.audit import Operator, latest
from tests.operations.changing import change_all
from tests.support.program import BIN, run
from tests.support.roles import FOR_EMITTING, GRANTS, PAGE, ROLES, As, as_role, grant, refused
from tests.support.servers import wait_until

COLUMNS = re.search(r"`GRANT (SELECT \([^)]*\))`", PAGE)


def statements_of(box: Outbox, *statements: str) -> list[Callable[[], object]]:
    return [lambda statement=statement: box.dialect.run(statement) for statement in statements]  # type: ignore[misc]


def test_the_page_grants_rights_to_each_role() -> None:
    assert set(re.findall(r"\bTO (\w+);", GRANTS)) == set(ROLES)


def test_the_page_names_every_table(owner: psycopg.Connection[Any]) -> None:
    for grantee in ("worker", "viewer"):
        granted = set(re.findall(r"\w+", " ".join(re.findall(rf"GRANT .*? TO {grantee};", GRANTS))))
        tables = owner.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        assert {name for (name,) in tables} <= granted, grantee


# The application


def test_an_application_emits_with_the_rights_of_the_page_and_changes_nothing(
    owner: psycopg.Connection[Any], box_as: As
) -> None:
    grant(owner, GRANTS)
    box = box_as("app")
    first = box.emit("Order", 1, "order.placed")
    assert len(box.emit_many([("Order", 2, "order.placed"), ("Order", 3, "order.placed")])) == 2
    with pytest.raises(outbox.DuplicateEvent, match=str(first.id)):
        box.emit("Order", 1, "order.placed")
    assert box.emit("Order", 1, "order.placed", on_duplicate="ignore").id == first.id
    box.reporter.report_now()
    with box.inbox.claim("7", "ledger") as new:
        assert new
    calls: list[Callable[[], object]] = [
        lambda: box.inbox.cleanup(0),
        box.process_pending_events,
        box.retry_failed_events,
        lambda: box.cleanup_delivered_events(0),
        box.check_schema,
        *statements_of(
            box,
            "UPDATE outbox_event SET payload = '{}'",
            "DELETE FROM outbox_event",
            "SELECT 1 FROM outbox_audit",
            "INSERT INTO outbox_schema (version, what) VALUES (99, '')",
            "SELECT setval('outbox_event_seq_seq', 1)",
        ),
    ]
    assert all(refused(call) for call in calls)


def send(box: Outbox, argument: int, **options: Any) -> dramatiq.Message[Any]:
    message: dramatiq.Message[Any] = dramatiq.Message("default", "charge", (argument,), {}, {})
    return store_message(box, StubBroker(), message, **options)


def test_an_application_sends_jobs_with_the_rights_of_the_page_and_takes_none_back(
    owner: psycopg.Connection[Any], box_as: As
) -> None:
    grant(owner, GRANTS)
    box = box_as("app")
    first = send(box, 1, idempotency_key="k")
    with pytest.raises(outbox.DuplicateEvent):
        send(box, 2, idempotency_key="k")
    assert send(box, 2, idempotency_key="k", on_duplicate="ignore").message_id == first.message_id
    send(box, 3, idempotency_key="new", on_duplicate="replace")  # nothing to replace
    assert refused(lambda: send(box, 2, idempotency_key="k", on_duplicate="replace"))
    assert refused(lambda: box.cancel(first))
    assert owner.execute("SELECT count(*) FROM outbox_event").fetchone() == (2,)


@pytest.mark.parametrize("state", ["untried", "tried"])
def test_replacing_takes_the_right_to_update_and_cancelling_that_to_delete(
    owner: psycopg.Connection[Any], box_as: As, state: str
) -> None:
    grant(owner, GRANTS)
    box = box_as("app")
    send(box, 1, idempotency_key="k")
    if state == "tried":
        owner.execute("UPDATE outbox_event SET attempts = 1")
    granted = dict(re.findall(r"`[^`]*` also needs `(GRANT (\w+) ON outbox_event TO app;)`", PAGE))
    for statement, right in granted.items():
        grant(owner, statement)
        if right == "UPDATE":
            send(box, 2, idempotency_key="k", on_duplicate="replace")
        else:
            assert box.cancel(actor="charge", idempotency_key="k")
    assert set(granted.values()) == {"UPDATE", "DELETE"}
    assert owner.execute("SELECT count(*) FROM outbox_event").fetchone() == (int(state == "tried"),)


def test_an_application_that_may_not_read_events_emits_and_names_duplicates(
    owner: psycopg.Connection[Any], box_as: As
) -> None:
    assert COLUMNS is not None
    grant(owner, FOR_EMITTING.replace("SELECT,", f"{' '.join(COLUMNS[1].split())},"))
    box = box_as("app")
    first = box.emit("Order", 1, "order.placed")
    with pytest.raises(outbox.DuplicateEvent, match=str(first.id)):
        box.emit("Order", 1, "order.placed")
    with pytest.raises(outbox.DuplicateEvent, match=str(first.id)):
        box.emit_many([("Order", 2, "order.placed"), ("Order", 1, "order.placed")])
    box.emit_many([("Order", 2, "order.placed")])
    assert refused(lambda: box.emit("Order", 1, "order.placed", on_duplicate="ignore"))
    assert refused(lambda: box.dialect.run("SELECT payload FROM outbox_event"))


def test_an_application_without_any_rights_is_refused(owner: psycopg.Connection[Any], box_as: As) -> None:
    box = box_as("app")
    assert refused(lambda: box.emit("Order", 1, "order.placed"))


# Workers


def delivered(owner: psycopg.Connection[Any]) -> int:
    row = owner.execute("SELECT count(*) FROM outbox_event WHERE delivered_at IS NOT NULL").fetchone()
    return 0 if row is None else int(row[0])


def test_a_worker_does_all_its_work_with_the_rights_of_the_page(owner: psycopg.Connection[Any], box_as: As) -> None:
    grant(owner, GRANTS)
    box_as("app").emit("Order", 1, "order.placed")
    box = box_as("worker")

    @box.registry.handler("*", name="book")
    def book(event: outbox.Event) -> None:
        if event.event_type == "order.placed":
            with box.inbox.claim(event.id, "book"), box.database.atomic():
                box.emit_many([("Order", 1, "order.booked"), ("Order", 1, "order.sent")])

    box.check_schema()
    box.become_worker()
    # A drain does not wait for a slow handler, so another drain may have to deliver what the handler emits.
    assert wait_until(lambda: box.drain() == 0 and delivered(owner) == 3)
    box.reporter.report_now()
    assert change_all(box, actions.REPLAY, Filter(event_type="order.sent"), operator=Operator("ada")) == 1
    assert change_all(box, actions.fail_with("why not"), Filter(), operator=Operator("ada")) == 1
    assert box.retry_failed_events() == 1
    assert box.drain() == 1
    assert change_all(box, actions.DELETE, Filter(event_type="order.sent"), operator=Operator("ada")) == 1
    run_periodic_job(box)
    retire(box.dialect, "book", retired_by=Operator("ada"), force=True)
    box.delete_old_records()
    assert box.inbox.cleanup(0)["deleted"] == 1
    assert box.cleanup_delivered_events(0)["deleted"] == 3
    for call in statements_of(
        box,
        "DROP TABLE outbox_event",
        "ALTER TABLE outbox_event ADD COLUMN mine text",
        "TRUNCATE outbox_event",
        "DELETE FROM outbox_schema",
        "CREATE TABLE mine (id integer)",
    ):
        with pytest.raises(peewee.ProgrammingError, match=r"permission denied|must be owner"):
            call()


def run_periodic_job(box: Outbox) -> None:
    """Declare a periodic job as a scheduler does, have it run by hand, and forget it."""
    schedule = make_schedule(None, {"hours": 1}, "UTC")
    function = PeriodicFunction(lambda run: None, "job", lambda run, seconds, outcome: None)
    box.registry.add_periodic(PeriodicJob("job", schedule, "latest", "skip", function=function))
    tick = StoreRuns(box, box.registry.periodic)
    tick()
    for action in (PAUSE, RESUME, RUN_NOW):
        periodic_jobs.apply(box.dialect, action, "job", operator=Operator("ada"))
    tick()
    assert box.drain() == 1
    box.dialect.run("UPDATE outbox_periodic SET seen_at = '2020-01-01'")
    periodic_jobs.apply(box.dialect, FORGET, "job", operator=Operator("ada"))


# Viewers


def test_a_viewer_sees_all_and_changes_nothing(owner: psycopg.Connection[Any], box_as: As, postgres_url: str) -> None:
    grant(owner, GRANTS)
    event = box_as("app").emit("Order", 1, "order.placed")
    box = box_as("viewer")
    assert overview(box.dialect).counts["pending"].number == 1
    assert queries.find(box.dialect, event.id) is not None
    assert queries.event_types(box.dialect) == ["order.placed"]
    assert read_periodic_jobs(box.dialect) == []
    assert [each.id for each in queries.page(box.dialect, Filter()).events] == [event.id]
    assert any(family.name == "outbox_up" for family in families(box))
    looked = {finding.check: finding.level for finding in run_checks(box)}
    assert {looked[name] for name in ("schema", "inbox", "indexes", "vacuum")} == {"ok"}
    for command in (["status"], ["list"], ["show", str(event.id)], ["periodic"]):
        done = run(BIN / "outbox", *command, database_url=as_role(postgres_url, "viewer"))
        assert done.returncode == 0, done.stdout
    for call in (
        lambda: box.emit("Order", 2, "order.placed"),
        lambda: box.emit_many([("Order", 2, "order.placed")]),
        box.process_pending_events,
        lambda: box.cleanup_delivered_events(0),
        lambda: change_all(box, actions.RETRY, operator=Operator("ada")),
        box.reporter.report_now,
        lambda: box.inbox.cleanup(0),
    ):
        assert refused(call)


def test_a_viewer_sees_nothing_unmasked_without_leaving_an_entry(
    owner: psycopg.Connection[Any], box_as: As, postgres_url: str
) -> None:
    grant(owner, GRANTS)
    event = box_as("app").emit("Order", 1, "order.placed", {"pwd": "hush"})
    done = run(BIN / "outbox", "show", "--unmasked", str(event.id), database_url=as_role(postgres_url, "viewer"))
    assert done.returncode != 0
    assert "permission denied for table outbox_audit" in done.stdout
    assert "hush" not in done.stdout


def test_a_watcher_sees_the_state_and_no_payload(owner: psycopg.Connection[Any], box_as: As, postgres_url: str) -> None:
    grant(owner, GRANTS)
    event = box_as("app").emit("Order", 1, "order.placed", {"name": "hush"}, headers={"name": "hush"})
    for command in (["status"], ["list"], ["list", "--json"], ["periodic"], ["metrics"]):
        done = run(BIN / "outbox", *command, database_url=as_role(postgres_url, "watcher"))
        assert done.returncode == 0, done.stdout
        assert "hush" not in done.stdout
    box = box_as("watcher")
    looked = {finding.check: finding.level for finding in run_checks(box)}
    assert {looked[name] for name in ("schema", "inbox", "indexes", "vacuum", "backlog", "failed")} == {"ok"}
    calls = statements_of(
        box, "SELECT payload FROM outbox_event", "SELECT headers FROM outbox_event", "SELECT who FROM outbox_audit"
    )
    assert all(refused(call) for call in [*calls, lambda: queries.find(box.dialect, event.id)])


def test_an_auditor_sees_the_audit_log_alone(owner: psycopg.Connection[Any], box_as: As) -> None:
    grant(owner, GRANTS)
    box = box_as("auditor")
    assert latest(box.dialect) == []
    calls = statements_of(
        box, "SELECT id FROM outbox_event", "SELECT id FROM outbox_process", "DELETE FROM outbox_audit"
    )
    assert all(refused(call) for call in calls)


# Rows that are not stored, or hidden


SKIPS = {
    "postgres": """
        CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER skip BEFORE INSERT ON outbox_event FOR EACH ROW EXECUTE FUNCTION skip()""",
    "sqlite": "CREATE TRIGGER skip BEFORE INSERT ON outbox_event BEGIN SELECT RAISE(IGNORE); END",
}


@pytest.mark.parametrize("on_duplicate", ["raise", "ignore"])
def test_a_trigger_that_skips_the_row_is_an_error_and_the_transaction_goes_on(box: Outbox, on_duplicate: Any) -> None:
    box.database.execute_sql(SKIPS[box.dialect.name])
    box.database.execute_sql("CREATE TABLE mine (id integer)")
    with box.database.atomic():
        for call in (
            lambda: box.emit("Order", 1, "order.placed", on_duplicate=on_duplicate),
            lambda: box.emit_many([("Order", 1, "order.placed")], on_duplicate=on_duplicate),
        ):
            with pytest.raises(outbox.EventNotStored, match=r"into outbox_event.*a BEFORE INSERT trigger.*row-level"):
                call()
        box.database.execute_sql("INSERT INTO mine VALUES (1)")
    assert box.database.execute_sql("SELECT count(*) FROM mine").fetchone() == (1,)
    assert OutboxEvent.select().count() == 0
    box.database.execute_sql("DROP TRIGGER skip" + (" ON outbox_event" if box.dialect.name == "postgres" else ""))
    box.emit("Order", 1, "order.placed", on_duplicate=on_duplicate)


def test_a_duplicate_that_row_level_security_hides_is_an_error_and_the_transaction_goes_on(
    owner: psycopg.Connection[Any], box_as: As
) -> None:
    grant(owner, GRANTS)
    owner.execute("ALTER TABLE outbox_event ENABLE ROW LEVEL SECURITY")
    owner.execute("CREATE POLICY new ON outbox_event FOR INSERT WITH CHECK (true)")
    owner.execute("CREATE POLICY own ON outbox_event FOR SELECT USING (tenant_id = 'mine')")
    box = box_as("app")
    with box.database.atomic():
        box.emit("Order", 1, "order.placed", tenant_id="mine")
    owner.execute("UPDATE outbox_event SET tenant_id = 'theirs'")
    with box.database.atomic():
        with pytest.raises(outbox.EventNotStored, match="row-level security"):
            box.emit("Order", 1, "order.placed", tenant_id="mine")
        box.emit("Order", 2, "order.placed", tenant_id="mine")
    assert owner.execute("SELECT count(*) FROM outbox_event").fetchone() == (2,)
