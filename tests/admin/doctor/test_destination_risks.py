"""Webhooks that send secrets, or unsigned events, over http are named by workers at their start and by the doctor."""

from typing import Any

import pytest

from outbox.admin.doctor.check import OK, WARNING
from outbox.core import Outbox
from outbox.webhooks.verify import new_secret
from outbox.webhooks.webhook import Webhook
from tests.admin.doctor.findings import advice_of, finding_of, findings_of
from tests.admin.doctor.published_processes import publish_process

HTTP, HTTPS = "http://receiver.example/hush", "https://receiver.example/hush"
SECRET = new_secret()

TOKEN = "its token or password is sent over http, unencrypted, so anyone on the way can use it"
UNSIGNED = "its requests are sent over http and are not signed, so anyone on the way can change them"

RISKY: list[tuple[str, dict[str, Any], list[str]]] = [
    (HTTP, {"token": "hush", "secret": SECRET}, [TOKEN]),
    (HTTP, {"headers": {"Authorization": "hush"}, "secret": SECRET}, [TOKEN]),
    ("http://me:hush@receiver.example/", {"secret": SECRET}, [TOKEN]),
    (HTTP, {}, [UNSIGNED]),
    ("http://10.0.0.7:8080/", {"token": "hush"}, [TOKEN, UNSIGNED]),
]
FINE: list[tuple[str, dict[str, Any]]] = [
    (HTTPS, {"token": "hush"}),
    (HTTPS, {}),
    (HTTP, {"secret": SECRET}),
    ("http://127.0.0.1:8080/", {"token": "hush"}),
    ("http://localhost/", {}),
    ("http://[::1]/", {}),
]


@pytest.mark.parametrize(("address", "options", "risks"), RISKY)
def test_a_risky_webhook_is_reported(
    box: Outbox, caplog: pytest.LogCaptureFixture, address: str, options: dict[str, Any], risks: list[str]
) -> None:
    box.registry.add(Webhook("billing", address, **options))
    found = findings_of(box, "exposed")
    assert {(each.level, each.what) for each in found} == {(WARNING, f"billing: {risk}.") for risk in risks}
    assert "https://" in advice_of(found[0])
    box.become_worker()
    box.become_worker()
    assert caplog.messages == [f"billing: {risk}. Use an https:// URL." for risk in risks]
    assert "hush" not in caplog.text


@pytest.mark.parametrize(("address", "options"), FINE)
def test_others_are_not(box: Outbox, caplog: pytest.LogCaptureFixture, address: str, options: dict[str, Any]) -> None:
    box.registry.add(Webhook("billing", address, **options))
    assert finding_of(box, "exposed").level == OK
    box.become_worker()
    assert caplog.messages == []


def test_what_a_worker_elsewhere_reports_is_found_as_well(box: Outbox) -> None:
    reported = {"kind": "Webhook", "seconds": 20.0, "events": ["*"], "risks": [TOKEN]}
    publish_process(box, pid=1, destinations={"billing": reported, "old": {"kind": "Webhook", "seconds": 20.0}})
    publish_process(box, pid=2, destinations={"billing": reported})
    (found,) = findings_of(box, "exposed")
    assert (found.level, found.what) == (WARNING, f"billing: {TOKEN}.")
