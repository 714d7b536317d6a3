"""What is logged: a line for each batch and for each failure, with fields, as JSON on request, and nothing secret."""

import json
import logging
import signal
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox.core import Outbox
from outbox.dramatiq import middleware, worker_shutdown
from outbox.telemetry import logs
from outbox.telemetry.logs import JsonFormatter, TextFormatter
from outbox.webhooks.verify import new_secret
from tests.conftest import Configure
from tests.support.processes import BIN, MakeStage, Program, make_stage
from tests.support.program import run
from tests.support.receiver import Receiver, answers
from tests.support.table import emit, emit_one

__all__ = ["make_stage"]

NEVER = "never to be seen"


@pytest.fixture(autouse=True)
def _peewee_as_it_was() -> Iterator[None]:
    level = logging.getLogger("peewee").level
    yield
    logging.getLogger("peewee").setLevel(level)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="outbox")
    return caplog


def told(lines: pytest.LogCaptureFixture, start: str) -> list[dict[str, Any]]:
    """Return the records whose messages begin with `start`, as the JSON formatter writes them."""
    return [
        json.loads(JsonFormatter().format(record)) for record in lines.records if record.getMessage().startswith(start)
    ]


class TestABatch:
    def test_is_one_line_with_its_outcomes(self, box: Outbox, lines: pytest.LogCaptureFixture) -> None:
        @outbox.handler("order.*", name="h")
        def handle(event: outbox.Event) -> None:
            match event.event_type:
                case "order.refused":
                    raise outbox.Reject("no")
                case "order.away":
                    raise outbox.Unavailable("away")

        emit(5)
        emit(2, "order.refused")
        emit(1, "order.away")
        box.process_pending_events()
        (line,) = told(lines, "batch: ")
        counts = {name: line[name] for name in ("claimed", "delivered", "retried", "failed", "released", "fenced")}
        assert counts == {"claimed": 8, "delivered": 5, "retried": 1, "failed": 2, "released": 0, "fenced": 0}
        assert line["message"].startswith("batch: 8 claimed, 5 delivered, 1 retried, 2 failed in ")
        assert line["level"] == "INFO"
        assert (line["seconds"] > 0, line["suspect"]) == (True, False)

    def test_that_is_empty_is_logged_at_debug_only(self, box: Outbox, lines: pytest.LogCaptureFixture) -> None:
        box.process_pending_events()
        assert [(record.levelname, record.getMessage()) for record in lines.records] == [("DEBUG", "nothing is due")]

    def test_that_is_given_back_is_logged_so(self, box: Outbox, lines: pytest.LogCaptureFixture) -> None:
        outbox.handler("order.*", name="h")(lambda event: box.stopping.set())
        emit(3)
        box.process_pending_events()
        (line,) = told(lines, "batch: ")
        assert (line["claimed"], line["delivered"], line["released"]) == (3, 1, 2)


class TestAFailure:
    def test_is_one_line_with_ids(self, configure: Configure, lines: pytest.LogCaptureFixture) -> None:
        box = configure(max_attempts=2, backoff_base_seconds=0)

        @outbox.handler("order.*", name="h")
        def handle(event: outbox.Event) -> None:
            raise ValueError("no")

        event = emit_one(payload={"card": NEVER}, headers={"x": NEVER}, tenant_id="acme", correlation_id="story")
        for _ in range(2):
            box.process_pending_events()
        (put_off,), (failed,) = told(lines, "put off"), told(lines, "failed: ")
        expected = {
            "event_id": str(event.id),
            "event_type": "order.placed",
            "aggregate_type": "Order",
            "aggregate_id": "0",
            "tenant_id": "acme",
            "correlation_id": "story",
            "destinations": ["h"],
            "max_attempts": 2,
            "error": "h: ValueError: no",
        }
        assert {name: failed[name] for name in expected} == {name: put_off[name] for name in expected} == expected
        assert (put_off["attempts"], failed["attempts"]) == (1, 2)
        assert (put_off["level"], failed["level"]) == ("WARNING", "ERROR")
        assert "next_attempt_at" in put_off
        assert "next_attempt_at" not in failed
        assert str(event.id) in failed["message"]
        assert all(NEVER not in JsonFormatter().format(record) for record in lines.records)


class TestJson:
    def test_is_a_line_of_its_own_with_everything_in_it(self) -> None:
        error = ValueError("two\nlines")
        record = logging.LogRecord("outbox", logging.ERROR, "f", 1, "%s\nß", ("a",), (ValueError, error, None))
        vars(record).update(logs.fields(event_id=object, message="not this", nothing=None))
        text = JsonFormatter().format(record)
        assert "\n" not in text
        line = json.loads(text)
        assert (line["message"], line["level"], line["logger"]) == ("a\nß", "ERROR", "outbox")
        assert line["exception"].endswith("ValueError: two\nlines")
        assert (line["event_id"], "nothing" in line) == (str(object), False)
        assert line["time"].endswith("+00:00")

    def test_names_of_fields_never_collide_with_a_records_own(self, lines: pytest.LogCaptureFixture) -> None:
        every = {name: name for name in vars(logging.makeLogRecord({}))} | {"message": "x", "asctime": "x"}
        logging.getLogger("outbox").info("fine", extra=logs.fields(**every))
        assert lines.messages == ["fine"]

    @pytest.mark.parametrize(("form", "expected"), [("json", JsonFormatter), ("text", TextFormatter)])
    def test_replaces_the_handlers_formatters_only_if_it_is_asked_for(
        self, monkeypatch: pytest.MonkeyPatch, form: str, expected: type
    ) -> None:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter())
        monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
        logs.use_format(form)
        logs.use_format(form)
        assert type(handler.formatter) is expected


FORGED = "2026-01-01 00:00:00 ERROR forged"
NASTY = f"no\n{FORGED}\r\x1b[2K\x9b31m\u202e\u2028{FORGED}\ud800"


class TestText:
    def formatted(self, message: str, *args: object, error: Exception | None = None) -> str:
        info = None if error is None else (type(error), error, error.__traceback__)
        record = logging.LogRecord("outbox", logging.ERROR, "f", 1, message, args, info)
        return TextFormatter(logging.Formatter(logs.TEXT_FORMAT)).format(record)

    def test_of_a_message_is_one_printable_line(self) -> None:
        text = self.formatted("failed: %s", NASTY)
        assert text.isprintable()
        assert text.endswith(f"ERROR failed: no\\n{FORGED}\\r\\x1b[2K\\x9b31m\\u202e\\u2028{FORGED}\\ud800")

    def test_of_a_traceback_has_no_line_that_looks_like_a_log_line(self) -> None:
        first, *rest = self.formatted("an error", error=ValueError(NASTY)).split("\n")
        assert first.endswith("ERROR an error")
        assert all(line.startswith("    ") and line.isprintable() for line in rest)
        assert rest[-1].strip().startswith(FORGED)

    def test_that_is_printable_is_as_the_other_formatter_has_it(self) -> None:
        assert self.formatted("a %s of %d", "ß\\n", 7).endswith("ERROR a ß\\n of 7")

    def test_leaves_the_record_to_other_handlers_as_it_is(self) -> None:
        record = logging.LogRecord("outbox", logging.ERROR, "f", 1, "%s", (NASTY,), None)
        TextFormatter(logging.Formatter()).format(record)
        assert record.getMessage() == NASTY

    def test_in_an_applications_own_process_names_and_errors_are_escaped_as_well(
        self, box: Outbox, lines: pytest.LogCaptureFixture
    ) -> None:
        @outbox.handler("*", name="h")
        def refuse(event: outbox.Event) -> None:
            raise outbox.Reject(NASTY.replace("\ud800", ""))

        emit_one("a\nb", aggregate_type="c\x1b", aggregate_id="\u202ed")
        box.process_pending_events()
        (line,) = [record.getMessage() for record in lines.records if record.levelno == logging.ERROR]
        assert line.isprintable()
        assert "<Event a\\nb c\\x1b:\\u202ed " in line


def test_a_worker_logs_names_and_errors_as_parts_of_one_line(make_stage: MakeStage) -> None:
    stage = make_stage()
    worker = stage.worker()
    with stage.box.database.atomic():
        stage.box.emit("Order", f"7\n{FORGED}\x1b[2K", "test.emitted", {"do": "fail", "times": 9}, max_attempts=1)
    stage.wake()
    stage.wait_until_all("failed")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    said = worker.said()
    assert f"Order:7\\n{FORGED}\\x1b[2K" in said
    assert "\x1b" not in said
    assert not any(line.startswith(FORGED) for line in said.splitlines())


@pytest.mark.parametrize(("under_dramatiq", "expected"), [(True, JsonFormatter), (False, logging.Formatter)])
def test_a_worker_changes_formatters_only_in_a_process_of_dramatiqs_program(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, under_dramatiq: bool, expected: type
) -> None:
    configure(log_format="json")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter())
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    monkeypatch.setattr(middleware, "under_dramatiq_cli", lambda: under_dramatiq)
    monkeypatch.setattr(worker_shutdown, "prepare", lambda: None)
    middleware.Lifecycle(lambda broker: None).after_process_boot(StubBroker(middleware=[]))
    assert type(handler.formatter) is expected


def test_peewee_logs_no_parameters_once_they_are_hidden(box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="peewee")  # a program that another test ran may have raised its level
    emit_one(payload={"card": NEVER})
    assert NEVER in caplog.text
    caplog.clear()
    logs.hide_statement_parameters()
    emit_one(payload={"card": NEVER})
    assert NEVER not in caplog.text


# Real processes


def parsed(program: Program) -> list[dict[str, Any]]:
    """Return the program's lines without those of Dramatiq's main process, which loads none of our code."""
    ours = [line for line in program.said().splitlines() if "dramatiq.MainProcess" not in line]
    return [json.loads(line) for line in ours]


def test_a_worker_a_scheduler_and_up_log_json(make_stage: MakeStage) -> None:
    stage = make_stage(log_format="json")
    scheduler = stage.scheduler()
    worker = stage.worker(processes=2)
    ids = stage.emit(2, do="fail", times=1, max_attempts=1)
    stage.wake()
    stage.wait_until_all("failed")
    up = stage.start("up", BIN / "outbox", "up", "tests.apps.ledger", ready="up: ")
    for program in (scheduler, worker, up):
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    lines = parsed(worker)
    assert {line["event_id"] for line in lines if line["message"].startswith("failed: ")} == {str(id) for id in ids}
    assert sum(line["claimed"] for line in lines if line["message"].startswith("batch: ")) == 2
    assert "scheduler stopped" in [line["message"] for line in parsed(scheduler)]
    assert "stopped" in [line["message"] for line in parsed(up)]


def test_text_is_the_default_and_a_wrong_format_is_one_line(make_stage: MakeStage) -> None:
    stage = make_stage()
    assert "INFO outbox.scheduler.process: scheduler started" in stage.scheduler().said()
    done = run(sys.executable, "-m", "scheduler", log_format="xml", redis_url=stage.redis_url)
    assert (done.returncode, done.stdout) == (
        2,
        "outbox: OUTBOX_LOG_FORMAT must be one of text, json, not 'xml'.\n",
    )


@pytest.mark.parametrize("form", ["text", "json"])
def test_neither_payloads_nor_secrets_are_in_anything_that_a_worker_prints(make_stage: MakeStage, form: str) -> None:
    """The worker logs at DEBUG, with a webhook that refuses, a handler that raises, and a broker that goes away."""
    secret, token = new_secret(), "token-0af7651916cd43dd"
    with Receiver(answers(500)) as receiver:
        place = receiver.url.removeprefix("http://")
        stage = make_stage(
            log_format=form,
            publish_seconds=0.1,
            webhook_url=f"http://user:password-b7ad6b71@{place}?token={token}",
            webhook_secret=secret,
        )
        worker = stage.start(
            "worker",
            *(BIN / "dramatiq", "jobs", "tests.apps.ledger", "-p", "1", "-t", "2", "-v"),
            ready="ready for action",
        )
        scheduler = stage.scheduler()
        stage.emit(2, do="fail", times=9, max_attempts=2, card=NEVER)
        stage.wake()
        stage.wait_until_all("failed")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert receiver.requests
    said = worker.said() + scheduler.said()
    assert "HTTP 500" in said
    assert "attempt 1 fails" in said
    for hidden in (NEVER, secret, secret.removeprefix("whsec_"), token, "password-b7ad6b71"):
        assert hidden not in said
    password = urlsplit(stage.settings.database_url).password
    if password is not None:
        assert password not in said
        assert unquote(password) not in said
