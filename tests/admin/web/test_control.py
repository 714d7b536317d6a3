"""The dashboard's hands on the wheel: pause, throttle, recover; stop and resume actions; and deleting everything."""

from typing import Any

import pytest

from outbox import OutboxEvent
from outbox.admin.web import make_app
from outbox.core import Outbox
from outbox.destinations.controls import EVERYTHING
from outbox.operations import apply_action
from outbox.operations.actions import DELETE
from outbox.operations.filters import Filter
from outbox.telemetry import audit
from outbox.telemetry.audit import Interrupted
from tests.admin.web.client import Client, anybody
from tests.admin.web.sample import many_delivered
from tests.support.controls import ALICE, controlled
from tests.support.ordering import Receiver, crm, run
from tests.support.table import emit

__all__ = ["crm"]

TOKEN = "A" * 43


def client_of(box: Outbox, *permissions: str, read_only: bool = False) -> Client:
    return Client(
        make_app(box, authenticate=anybody, authorize=lambda connection, user: permissions, read_only=read_only)
    )


def post(client: Client, path: str, fields: str, *, token: str = TOKEN) -> Any:
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": f"outbox_csrf={TOKEN}"}
    return client.post(path, content=f"{fields}&csrf_token={token}", headers=headers)


@pytest.fixture
def worker(box: Outbox, crm: Receiver) -> Outbox:
    box.become_worker()
    return box


def test_a_destination_is_paused_and_resumed_with_the_user_s_name(worker: Outbox, crm: Receiver) -> None:
    client = client_of(worker, "operate")
    page = post(client, "/control/act", "action=pause&name=crm&minutes=30&reason=migration")
    assert page.status_code == 200
    assert "It is paused." in page.text
    assert ": migration" in page.text
    assert "Resume: crm" in page.text
    emit(2)
    run(worker)
    assert crm.calls == {}
    assert "due at once" in post(client, "/control/act", "action=resume&name=crm").text
    run(worker)
    assert len(crm.ids("")) == 2
    assert [entry.action for entry in audit.latest(worker.dialect)] == ["resume", "pause"]
    assert str(audit.latest(worker.dialect)[0].via).startswith("dashboard")


def test_everything_is_paused_and_a_destination_throttled_and_recovered(worker: Outbox) -> None:
    client = client_of(worker, "operate")
    post(client, "/control/act", f"action=pause&name={EVERYTHING}")
    assert EVERYTHING in controlled(worker).pauses
    post(client, "/control/act", "action=throttle&name=crm&per_second=2.5&minutes=")
    assert "throttled to 2.5/s" in client.get("/control").text
    assert "no longer throttled" in post(client, "/control/act", "action=unthrottle&name=crm").text
    assert "It is tried again" in post(client, "/control/act", "action=recover&name=crm").text


@pytest.mark.parametrize(
    "fields",
    [
        "action=explode&name=crm",
        "action=pause&name=nobody",
        "action=pause&name=crm&minutes=0",
        "action=pause&name=crm&minutes=nan",
        "action=pause&name=crm&minutes=1e300",
        "action=throttle&name=crm",
        "action=throttle&name=crm&per_second=x",
        "action=throttle&name=*&per_second=1",
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(worker: Outbox, fields: str) -> None:
    assert post(client_of(worker, "operate"), "/control/act", fields).status_code == 400
    assert not controlled(worker)


def test_only_operators_control_and_no_other_site_does(worker: Outbox) -> None:
    for client in (client_of(worker, "view"), client_of(worker, "operate", read_only=True)):
        assert post(client, "/control/act", "action=pause&name=crm").status_code == 403
        assert "/control/act" not in client.get("/control").text
    assert (
        post(client_of(worker, "operate"), "/control/act", "action=pause&name=crm", token="B" * 43).status_code == 403
    )
    assert not controlled(worker)


def running(box: Outbox, count: int = 3) -> Any:
    """An action that deletes events one by one, and has deleted the first."""
    many_delivered(count)
    work = apply_action.apply(box.dialect, lambda _: None, DELETE, Filter(), operator=ALICE, batch_size=1)
    next(work)
    return work


def test_an_action_is_stopped_and_resumed(box: Outbox) -> None:
    work = running(box)
    (entry,) = audit.latest(box.dialect)
    client = client_of(box, "admin")
    page = client.get(f"/audit/{entry.id}").text
    assert "1 of 3 that matched" in page
    assert ">Stop</button>" in page
    assert "stops after its current batch" in post(client, "/bulk/act", f"action=stop&id={entry.id}").text
    next(work)
    with pytest.raises(Interrupted):
        next(work)
    assert ">Resume</button>" in client.get(f"/audit/{entry.id}").text
    assert "continues where it stopped" in post(client, "/bulk/act", f"action=resume&id={entry.id}").text
    assert OutboxEvent.select().count() == 0
    assert post(client, "/bulk/act", f"action=stop&id={entry.id}").status_code == 400


def test_an_action_is_stopped_only_by_those_who_may_run_it(box: Outbox) -> None:
    work = running(box)
    (entry,) = audit.latest(box.dialect)
    client = client_of(box, "operate")
    assert ">Stop</button>" not in client.get(f"/audit/{entry.id}").text
    assert post(client, "/bulk/act", f"action=stop&id={entry.id}").status_code == 403
    assert max(work) == 3


@pytest.mark.parametrize(("typed", "status", "left"), [("", 400, 2), ("yes", 400, 2), ("delete everything", 200, 0)])
def test_deleting_everything_must_be_typed(box: Outbox, typed: str, status: int, left: int) -> None:
    many_delivered(2)
    client = client_of(box, "admin")
    assert "delete everything" in client.get("/confirm?action=delete&scope=all").text
    assert post(client, "/act", f"action=delete&scope=all&typed={typed}").status_code == status
    assert OutboxEvent.select().count() == left
