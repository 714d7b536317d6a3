"""A whole run with secrets wherever one can stand, and then a search through everything that could be seen of it."""

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import redis

import outbox
from outbox.encryption.keys import new_key
from outbox.settings import PREFIX
from outbox.storage.ids import uuid7
from outbox.webhooks.verify import new_secret
from tests.support.dashboard import ask, dashboard, port_of
from tests.support.processes import BIN, MakeStage, Stage, make_stage
from tests.support.program import run
from tests.support.receiver import Exchange, Receiver, Reply, answers
from tests.support.servers import Redis
from tests.support.table import becomes_true

__all__ = ["make_stage"]

REDIS_PASSWORD = "in-redis-8f2d11"
WRONG_PASSWORD = "wrong-60b1c5"
WEBHOOK_PASSWORD = "in-webhook-url-b7ad6b"
WEBHOOK_TOKEN = "in-webhook-query-0af765"
DASHBOARD_PASSWORD = "in-dashboard-77aa01"
USER_PASSWORD = "in-dashboard-users-4be19c"
METRICS_TOKEN = "in-metrics-token-93a0d7"
PAYLOAD_PASSWORD = "in-payload-c0ffee"
HEADER_TOKEN = "in-headers-d00d1e"
CARD = "in-payload-4000-0000"  # under a key that sounds like no secret

WEBHOOK_SECRET = new_secret()
ENCRYPTION_KEY, OLD_KEY = new_key().text, new_key().text
WRONG_KEY = OLD_KEY[:-8]
SETTINGS = [WEBHOOK_PASSWORD, WEBHOOK_TOKEN, DASHBOARD_PASSWORD, REDIS_PASSWORD, WRONG_PASSWORD]
SETTINGS += [USER_PASSWORD, METRICS_TOKEN]
SECRETS = [*SETTINGS, ENCRYPTION_KEY, OLD_KEY, WRONG_KEY, WEBHOOK_SECRET, WEBHOOK_SECRET.removeprefix("whsec_")]
BASIC = b64encode(f"me:{WEBHOOK_PASSWORD}".encode()).decode()
MASKED = [PAYLOAD_PASSWORD, HEADER_TOKEN]


def echoes(exchange: Exchange) -> None:
    """A receiver that refuses, and repeats what it was sent, as many do."""
    request = exchange.request
    body = f"{request.target} {request.headers['authorization']} {request.headers['webhook-signature']}".encode()
    reply: Reply = answers(500, body)
    reply(exchange)


@pytest.fixture
def redis_address(redis_server: Redis) -> Iterator[str]:
    with redis.Redis.from_url(redis_server.url) as client:
        admin: Any = client
        admin.acl_setuser(
            "guarded", enabled=True, passwords=[f"+{REDIS_PASSWORD}"], keys=["*"], channels=["*"], commands=["+@all"]
        )
        yield redis_server.url.replace("redis://", f"redis://guarded:{REDIS_PASSWORD}@")
        admin.acl_deluser("guarded")


@pytest.fixture
def stage(make_stage: MakeStage, redis_address: str) -> Iterator[Stage]:
    with Receiver(echoes) as receiver:
        place = receiver.url.removeprefix("http://")
        yield make_stage(
            redis_url=redis_address,
            webhook_url=f"http://me:{WEBHOOK_PASSWORD}@{place}?token={WEBHOOK_TOKEN}",
            webhook_secret=WEBHOOK_SECRET,
            encryption_keys=f"{ENCRYPTION_KEY} {OLD_KEY}",
            stream=f"secrets-{uuid7()}",
            dashboard_user="ada",
            dashboard_password=DASHBOARD_PASSWORD,
            dashboard_users=f"grace:view:{USER_PASSWORD}",
            metrics_token=METRICS_TOKEN,
            publish_seconds=0.1,
        )
        assert receiver.requests


def emit(stage: Stage, **how: Any) -> None:
    payload = {"password": PAYLOAD_PASSWORD, "nested": [{"apiKey": PAYLOAD_PASSWORD}], "card": CARD, **how}
    with stage.box.dialect.connection():
        stage.box.emit(
            "Thing", 1, "test.emitted", payload,
            headers={"Authorization": HEADER_TOKEN}, idempotency_key=outbox.UNIQUE, max_attempts=2,
        )  # fmt: skip


def pages(stage: Stage) -> dict[str, str]:
    """What the dashboard shows to one who may see it, and to one who may not."""
    port = port_of(dashboard(stage))
    paths = ["/", "/events", "/audit", "/metrics", "/confirm?action=retry&scope=all", "/events/nothing"]
    paths += [f"/events/{id}" for (id,) in stage.rows("id")]
    ada = "Basic " + b64encode(f"ada:{DASHBOARD_PASSWORD}".encode()).decode()
    found = {path: ask(port, "GET", path, Authorization=ada)[2] for path in paths}
    wrong = "Basic " + b64encode(f"ada:{WRONG_PASSWORD}".encode()).decode()
    return found | {"refused": ask(port, "GET", "/", Authorization=wrong)[2]}


def command_lines(stage: Stage) -> str:
    """As a process list shows them."""
    pids = [pid for program in stage.programs for pid in program.family()]
    return "\n".join(file.read_text() for pid in pids if (file := Path(f"/proc/{pid}/cmdline")).exists())


def commands(stage: Stage) -> dict[str, str]:
    """What commands say, also when nothing works."""
    given: dict[str, Any] = {
        name.removeprefix(PREFIX).lower(): value for name, value in stage.environment.items() if name.startswith(PREFIX)
    }
    found = {
        line: run(BIN / "outbox", *line.split(), **given).stdout
        for line in ("list", "doctor", "reencrypt --yes", "emit Thing 1 *", "deliver nowhere")
    }
    for number, (command, variable, value) in enumerate(WRONG):
        found[f"{command} {number}"] = run(BIN / "outbox", command, **given | {variable: value}).stdout
    found["doctor with brokers"] = run(BIN / "outbox", "doctor", **given | BROKERS).stdout
    return found


WRONG = [
    ("status", "database_url", f"postgresql://u:{WRONG_PASSWORD}@127.0.0.1:1/d"),
    ("list", "database_url", f"mysql://u:{WRONG_PASSWORD}@h/d"),
    ("doctor", "redis_url", f"redis://:{WRONG_PASSWORD}@127.0.0.1:1/0"),
    ("doctor", "redis_url", f"redis://:{WRONG_PASSWORD}/@h:port"),
    ("status", "webhook_url", f"ftp://u:{WRONG_PASSWORD}@h"),
    ("status", "webhook_secret", WRONG_PASSWORD),
    ("doctor", "encryption_keys", f"{ENCRYPTION_KEY} {WRONG_KEY}"),
    ("reencrypt", "encryption_keys", f"{ENCRYPTION_KEY} {ENCRYPTION_KEY}"),
]
# Message brokers that can't be reached.
BROKERS = {
    "rabbitmq_url": f"amqp://u:p@127.0.0.1:1 amqp://u:{WRONG_PASSWORD}@127.0.0.1:1",
    "rabbitmq_exchange": "events",
    "nats_url": f"nats://{WRONG_PASSWORD}@127.0.0.1:1",
    "kafka_servers": "127.0.0.1:1",
    "kafka_config": f"security.protocol=ssl ssl.key.pem={WRONG_PASSWORD}",
}


def test_no_secret_is_in_anything_that_a_run_prints_shows_keeps_or_lists(stage: Stage) -> None:
    emit(stage, do="fail", times=9)
    emit(stage, do="pass")
    stage.start("worker", BIN / "dramatiq", "jobs", "tests.apps.ledger", "-p", "1", "-t", "2", "-v", ready="ready for")
    stage.scheduler()
    assert stage.settings.stream is not None
    stage.start("consumer", BIN / "outbox", "consume", stage.settings.stream, "tests.apps.ledger", ready="consuming")
    stage.wait_until_all("failed")
    becomes_true(lambda: "will be delivered again" in stage.programs[-1].said())
    seen = pages(stage)
    said = commands(stage)
    lines = command_lines(stage)
    kept = "\n".join(str(row) for row in stage.rows("error_message", "progress"))
    with stage.box.dialect.connection():
        kept += str(stage.box.dialect.run("SELECT details FROM outbox_process").fetchall())
    logged = {program.output.name: program.said() for program in stage.programs}

    password = unquote(str(urlsplit(stage.settings.database_url).password))
    for where, text in {**seen, **said, **logged, "process list": lines, "table": kept}.items():
        for secret in [*SECRETS, BASIC, password]:
            assert secret not in text, where
    for where, text in {**seen, **logged, "process list": lines}.items():
        for secret in MASKED:
            assert secret not in text, where
    for where, text in {**said, **logged, "process list": lines, "/events": seen["/events"]}.items():
        assert CARD not in text, where
    # It was a run, and not nothing.
    assert "HTTP 500" in kept
    assert "attempt 1 fails" in str(logged)
    assert CARD in str(seen)
    assert "dramatiq" in lines
    assert all(said.values())
    assert said["doctor with brokers"].count("can't be used") >= 3
