"""What the dashboard shows of encrypted rows, with the key and without it."""

from typing import Any

import pytest

import outbox
from outbox.admin.web import make_app
from outbox.core import Outbox
from tests.admin.web.browser import Browser
from tests.admin.web.client import Client, anybody
from tests.conftest import Configure
from tests.support.encryption import NEW, OTHER, damage, with_keys
from tests.support.jobs import row_of
from tests.support.table import emit_one, stored

CARD = "4242 4242"


@pytest.fixture
def box(configure: Configure) -> Outbox:
    return configure(encryption_keys=NEW.text)


def dashboard_of(box: Outbox) -> Browser:
    return Browser(Client(make_app(box, authenticate=anybody)))


def test_the_page_of_an_event_shows_its_payload_and_still_masks_secrets(box: Outbox, browser: Browser) -> None:
    event = emit_one(payload={"card": CARD, "password": "hunter2"}, headers={"trace": "abc"})
    page = browser.get(f"/events/{event.id}").text
    assert CARD in page
    assert '"trace": "abc"' in page
    assert "hunter2" not in page


@pytest.mark.parametrize("keys", [(), (OTHER.text,)])
def test_without_the_key_the_page_names_it(box: Outbox, keys: tuple[str, ...]) -> None:
    event = emit_one(payload={"card": CARD}, headers={"trace": "abc"})
    page = dashboard_of(with_keys(box, *keys)).get(f"/events/{event.id}").text
    assert page.count(f"Not shown: encrypted with the key {NEW.id}, which this process does not have") == 2
    assert "outbox_encrypted" not in page


def test_a_row_that_was_changed_is_not_shown(browser: Browser) -> None:
    event = emit_one(payload={"card": CARD})
    damage(stored(event))
    page = browser.get(f"/events/{event.id}").text
    assert "Not shown: the payload can't be decrypted: it was changed" in page


def test_the_list_and_the_page_of_a_job_show_its_arguments(box: Outbox, browser: Browser, charge: Any) -> None:
    job = row_of(outbox.send(charge, CARD))
    assert CARD in browser.get("/events").text
    assert CARD in browser.get(f"/events/{job.id}").text
    without = dashboard_of(with_keys(box))
    assert f"encrypted with the key {NEW.id}" in without.get("/events").text
    assert f"Not shown: encrypted with the key {NEW.id}" in without.get(f"/events/{job.id}").text


def test_the_search_finds_keys_and_aggregates_without_the_key(box: Outbox) -> None:
    event = emit_one(payload={"card": CARD}, aggregate_id="7", idempotency_key="the-key")
    without = dashboard_of(with_keys(box))
    for text in ("the-key", "Order:7"):
        assert str(event.id) in str(without.get(f"/events?q={text}").tags)
