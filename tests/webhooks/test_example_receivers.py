"""The example receivers, unchanged: they run as real servers, and an outbox delivers to them."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import standardwebhooks

import outbox
from outbox import OutboxEvent, webhooks
from outbox.core import Outbox
from outbox.storage.connect import open_database
from tests.conftest import is_postgres
from tests.support.processes import Stage
from tests.support.serving import at_the_same_moment, port_of, post, serve
from tests.support.table import LONG_AGO, change, deliver_all, error_of, let_pass, statuses, stored

SECRET, ANOTHER = webhooks.new_secret(), webhooks.new_secret()


class Ledger:
    """A running receiver, and the database that it writes to."""

    def __init__(self, stage: Stage, framework: str, url: str) -> None:
        self.program = serve(
            stage,
            "flask" if framework == "flask" else "uvicorn",
            f"examples.receivers.with_{framework}",
            OUTBOX_DATABASE_URL=url,
            LEDGER_SECRET=SECRET,
        )
        self.port = port_of(self.program)
        self.url = url
        self.database: Any = open_database(url)
        self.close: Callable[[], None] = lambda: None

    def balances(self) -> dict[str, int]:
        with self.database.connection_context():
            return dict(self.database.execute_sql("SELECT name, cents FROM ledger_account").fetchall())

    def remembered(self) -> list[tuple[str, str]]:
        with self.database.connection_context():
            return list(self.database.execute_sql("SELECT message_id, handler_name FROM inbox").fetchall())

    def subscribe(self, secret: str = SECRET) -> None:
        """Register a webhook, with which the outbox delivers to it."""
        url = f"http://127.0.0.1:{self.port}/events"
        webhook = outbox.Webhook("ledger", url, secret=secret, events=["entry.*"])
        outbox.add_destination(webhook)
        self.close = webhook.close

    def post(self, body: bytes, headers: dict[str, str]) -> int:
        return post(self.port, "/events", body, headers)[0]


@pytest.fixture
def emitter(box: Outbox) -> Outbox:
    """An outbox on each kind of database; the receiver has the other kind."""
    return box


@pytest.fixture(params=["flask", "starlette"])
def ledger(request: pytest.FixtureRequest, emitter: Outbox, url: str, tmp_path: Path) -> Iterator[Ledger]:
    other = f"sqlite:///{tmp_path / 'ledger.sqlite3'}"
    if not is_postgres(url):
        other = request.getfixturevalue("postgres_url")
    with Stage(tmp_path, database_url=f"sqlite:///{tmp_path / 'stage.sqlite3'}", redis_url=None) as stage:
        ledger = Ledger(stage, request.param, other)
        yield ledger
        ledger.close()
        ledger.database.close_all()
        assert "database is locked" not in ledger.program.said()


def entry(account: str, cents: int) -> OutboxEvent:
    return outbox.emit("Account", account, "entry.made", {"cents": cents}, idempotency_key=outbox.UNIQUE)


def signed(body: bytes, *, secret: str = SECRET, id: str | None = None, ago: timedelta = timedelta()) -> dict[str, str]:
    """Return the headers that the reference implementation of Standard Webhooks would send."""
    id, moment = str(uuid4()) if id is None else id, datetime.now(UTC) - ago
    signature = standardwebhooks.Webhook(secret).sign(id, moment, body.decode())
    return {
        "Webhook-Id": id,
        "Webhook-Timestamp": str(int(moment.timestamp())),
        "Webhook-Signature": signature,
        "Content-Type": "application/json",
    }


def written(account: str = "ada", cents: int = 100) -> bytes:
    return json.dumps({"aggregate_id": account, "data": {"cents": cents}}).encode()


def test_an_event_that_is_delivered_twice_is_booked_once(emitter: Outbox, ledger: Ledger) -> None:
    ledger.subscribe()
    events = [entry("ada", 1_250), entry("ada", 50), entry("blaise", 7)]
    for _ in range(2):
        deliver_all(emitter)
        assert statuses() == {"delivered": 3}
        change(status="pending", next_attempt_at=LONG_AGO, delivered_at=None)  # as if no answer had come
    assert ledger.balances() == {"ada": 1_300, "blaise": 7}
    assert sorted(ledger.remembered()) == sorted((str(event.id), "ledger") for event in events)


def test_an_event_that_fails_gets_5xx_and_is_booked_when_it_is_sent_again(emitter: Outbox, ledger: Ledger) -> None:
    ledger.subscribe()
    debit = entry("ada", -100)  # an account can't be overdrawn
    emitter.process_pending_events()
    assert (stored(debit).status, stored(debit).attempts) == ("pending", 1)
    assert "500" in error_of(debit)
    assert (ledger.balances(), ledger.remembered()) == ({}, [])
    entry("ada", 150)
    emitter.process_pending_events()
    let_pass(hours=1)
    emitter.process_pending_events()
    assert (statuses(), ledger.balances()) == ({"delivered": 2}, {"ada": 50})


def test_another_secret_gets_401_and_nothing_is_booked(emitter: Outbox, ledger: Ledger) -> None:
    ledger.subscribe(ANOTHER)
    event = entry("ada", 100)
    emitter.process_pending_events()
    assert stored(event).status == "pending"
    assert "401" in error_of(event)
    assert (ledger.balances(), ledger.remembered()) == ({}, [])
    assert "No signature matches" in ledger.program.said()


def test_a_request_that_differs_from_what_was_signed_gets_401(ledger: Ledger) -> None:
    body = written()
    refused: list[tuple[bytes, dict[str, str]]] = [
        (body, {}),
        (body, signed(body, secret=ANOTHER)),
        (written(cents=101), signed(body)),
        (body, signed(body) | {"Webhook-Id": str(uuid4())}),
        (body, signed(body) | {"Webhook-Signature": "v1,"}),
        (body, signed(body, ago=timedelta(minutes=6))),
        (b"no JSON", {}),
    ]
    assert [ledger.post(body, headers) for body, headers in refused] == [401] * len(refused)
    assert (ledger.balances(), ledger.remembered()) == ({}, [])
    assert ledger.post(body, signed(body, ago=timedelta(minutes=4))) == 204
    assert ledger.balances() == {"ada": 100}


def test_a_body_that_is_not_json_gets_400_and_is_not_remembered(ledger: Ledger) -> None:
    id = str(uuid4())
    for body in (b"", b"{", b"nonsense"):
        assert ledger.post(body, signed(body, id=id)) == 400
    for body in (b"[]", b"{}", b"null", b'{"aggregate_id": "ada", "data": {"cents": null}}'):
        assert ledger.post(body, signed(body, id=id)) == 500
    assert (ledger.balances(), ledger.remembered()) == ({}, [])
    assert ledger.post(written(), signed(written(), id=id)) == 204
    assert ledger.remembered() == [(id, "ledger")]


def test_twenty_of_the_same_request_at_once_are_booked_once(ledger: Ledger) -> None:
    headers = signed(written())
    answers = at_the_same_moment(20, lambda: ledger.post(written(), headers), url=ledger.url, table="ledger_account")
    assert answers == [204] * 20
    assert ledger.balances() == {"ada": 100}
    assert ledger.remembered() == [(headers["Webhook-Id"], "ledger")]
