"""No action of an operator waits for ever behind another session's lock: it gives up, and can be continued."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import peewee
import psycopg
import pytest

from outbox.admin.lock_waits import describe_lock_timeout
from outbox.core import Outbox
from outbox.operations import bulk_actions, controls, erase, periodic_jobs
from outbox.operations.actions import ACTIONS, RETRY
from outbox.operations.archive import delete_ended
from outbox.operations.filters import Filter
from outbox.storage import retention
from outbox.storage.connection_errors import is_lock_timeout
from outbox.storage.dialect import Dialect
from outbox.storage.models import OutboxEvent
from outbox.telemetry import audit
from tests.operations.changing import apply, change_all, count_all
from tests.support.controls import ALICE
from tests.support.table import change, emit, on_postgres, statuses

pytestmark = on_postgres

Use = Callable[[Outbox], object]


@contextmanager
def locked(url: str, table: str) -> Iterator[int]:
    """A transaction that has locked a table and is idle; yield its process id."""
    with psycopg.connect(url, application_name="psql") as session:
        session.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield session.info.backend_pid


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dialect, "lock_seconds", 0.1)


def _on_action(name: str) -> Use:
    return lambda box: change_all(box, ACTIONS[name], operator=ALICE)


USES: dict[str, tuple[str, Use]] = {
    **{name: ("outbox_event", _on_action(name)) for name in ACTIONS},
    "an action's audit entry": ("outbox_audit", _on_action("retry")),
    "count": ("outbox_event", lambda box: count_all(box, RETRY)),
    "erase": ("outbox_event", lambda box: erase.preview(box.dialect, Filter(subject="user:7"))),
    "resume": ("outbox_event", lambda box: controls.resume(box.dialect, lambda: None, "crm", operator=ALICE)),
    "pause": ("outbox_audit", lambda box: controls.pause(box.dialect, "crm", operator=ALICE, force=True)),
    "stop": ("outbox_audit", lambda box: bulk_actions.stop(box.dialect, UUID(int=7), operator=ALICE)),
    "periodic": (
        "outbox_periodic",
        lambda box: periodic_jobs.apply(box.dialect, periodic_jobs.PAUSE, "nightly", operator=ALICE),
    ),
    "how many to clean up": ("outbox_event", lambda box: retention.count_ended(box.dialect, 0)),
    "clean-up": ("outbox_event", lambda box: delete_ended(box.dialect, None, 0, stopping=box.stopping)),
    "records": ("outbox_minute", lambda box: box.delete_old_records()),
    "inbox": ("inbox", lambda box: box.inbox.cleanup()),
    "audit log": ("outbox_audit", lambda box: audit.latest(box.dialect)),
    "schema": ("outbox_schema", lambda box: box.check_schema()),
}


@pytest.mark.parametrize("name", USES)
def test_an_operators_action_gives_up_while_a_table_is_locked(box: Outbox, url: str, name: str) -> None:
    emit(3)
    table, use = USES[name]
    with locked(url, table), pytest.raises(peewee.OperationalError) as caught:
        use(box)
    assert is_lock_timeout(caught.value)
    assert statuses() == {"pending": 3}


def test_the_session_that_holds_the_lock_is_named(box: Outbox, url: str) -> None:
    with locked(url, "outbox_audit") as pid:
        assert f"Process {pid} of PostgreSQL (psql, idle in transaction" in describe_lock_timeout(box.dialect)
    assert "Another session holds a lock" in describe_lock_timeout(box.dialect)


def test_an_action_that_another_session_held_up_is_resumed_where_it_has_ended(box: Outbox, url: str) -> None:
    emit(4)
    change(status="failed", next_attempt_at=None)
    work = apply(box, RETRY, operator=ALICE, batch_size=2)
    assert next(work) == 2
    with locked(url, "outbox_event"), pytest.raises(peewee.OperationalError):
        next(work)
    assert statuses() == {"failed": 2, "pending": 2}
    (entry,) = audit.latest(box.dialect)
    assert (entry.affected, entry.outcome, entry.cause) == (2, audit.INTERRUPTED, "another session held a lock")
    retried = {event.id for event in OutboxEvent.select().where(OutboxEvent.status == "pending")}
    notify = box.notifier.notify_after_commit
    assert list(bulk_actions.resume(box.dialect, notify, box.registry, entry.id, operator=ALICE)) == [2]
    assert statuses() == {"pending": 4}
    assert retried.isdisjoint(audit.changed_ids(box.dialect, audit.latest(box.dialect)[0].id))


def test_the_limit_ends_with_its_block(box: Outbox) -> None:
    def limit() -> str:
        return str(box.dialect.run("SELECT current_setting('lock_timeout')").fetchone()[0])

    with box.dialect.connection(), box.database.atomic():
        with box.dialect.lock_limit():
            assert limit() == "100ms"
        assert limit() == "0"
