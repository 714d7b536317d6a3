"""The page of the blocked keys, and what other pages say about events that wait behind others."""

import re

import pytest

from outbox.admin.web import make_app
from outbox.core import Outbox
from outbox.storage.models import FAILED, PENDING
from tests.admin.web.browser import Browser, form_to
from tests.admin.web.client import Client, anybody
from tests.support.blocked_keys import Crm, block, keyed, run
from tests.support.table import emit, let_pass, stored


@pytest.fixture
def crm(box: Outbox) -> Crm:
    return Crm()


class TestThePage:
    def test_without_blocked_keys_it_says_so(self, box: Outbox, browser: Browser) -> None:
        page = browser.get("/keys")
        assert "No key is blocked" in page.text

    def test_lists_the_keys_with_the_events_that_hold_them_back(self, box: Outbox, crm: Crm, browser: Browser) -> None:
        head, *_ = block(box, crm)
        page = browser.get("/keys")
        assert "1 key blocked, the longest wait first" in page.text
        assert "2 events" in page.text
        assert "no such customer" in page.text
        assert f"/events/{head.id}" in page.links.values()

    def test_skip_lets_the_later_events_go_on(self, box: Outbox, crm: Crm, browser: Browser) -> None:
        head, *_ = block(box, crm)
        page = browser.get("/keys")
        page = browser.submit(form_to(page, "/confirm"), ("action", "skip"))
        assert "Later events of its ordering key no longer wait behind it." in page.text
        page = browser.submit(form_to(page, "/act"))
        assert "Blocked keys" in page.text
        assert "1 event was skipped." in page.text
        run(box)
        assert crm.got == ["k-1", "k-2"]
        assert stored(head).status == FAILED

    def test_retry_makes_the_event_due(self, box: Outbox, crm: Crm, browser: Browser) -> None:
        head, *_ = block(box, crm)
        page = browser.get("/keys")
        page = browser.submit(form_to(page, "/confirm"), ("action", "retry"))
        page = browser.submit(form_to(page, "/act"))
        assert ("Blocked keys" in page.text, stored(head).status) == (True, PENDING)
        crm.rejected.clear()
        run(box)
        assert crm.got == ["k-0", "k-1", "k-2"]

    def test_an_event_that_is_tried_again_can_t_be_skipped(self, box: Outbox, crm: Crm, browser: Browser) -> None:
        block(box, crm, failed=False)
        page = browser.get("/keys")
        assert "next attempt in" in page.text
        assert "Skip" not in [button for form in page.forms for _, button in form.buttons]

    def test_one_key(self, box: Outbox, crm: Crm, browser: Browser) -> None:
        block(box, crm, key="order:1")
        block(box, crm, key="order:2")
        page = browser.get("/keys?key=order%3A1")
        assert "order:1" in page.links
        assert "order:2" not in page.links
        page = browser.get("/keys?key=order%3A3")
        assert "This key is not blocked" in page.text

    def test_a_read_only_dashboard_has_no_buttons(self, box: Outbox, crm: Crm) -> None:
        block(box, crm)
        browser = Browser(Client(make_app(box, authenticate=anybody, read_only=True)))
        page = browser.get("/keys")
        assert "no such customer" in page.text
        assert not [form for form in page.forms if "/confirm" in form.action]

    def test_whatever_a_key_contains_is_escaped(self, box: Outbox, crm: Crm, client: Client) -> None:
        block(box, crm, key="<script>alert(1)</script>")
        assert "<script>alert" not in client.get("/keys").text
        assert "<script>alert" not in client.get("/keys?key=<script>alert(1)</script>").text


class TestOtherPages:
    def test_the_page_of_an_event_links_to_what_it_waits_behind(self, box: Outbox, crm: Crm, browser: Browser) -> None:
        head, second, _ = block(box, crm)
        page = browser.get(f"/events/{second.id}")
        assert f"Waits behind order.placed …{str(head.id)[-8:]} at crm: failed." in page.text
        assert f"/events/{head.id}" in page.links.values()
        page = browser.get(f"/events/{head.id}")
        assert "2 later events of k at crm" in page.text

    def test_no_page_shows_the_year_9000(self, box: Outbox, crm: Crm, client: Client) -> None:
        head, second, _ = block(box, crm)
        for path in ("/", "/events", "/events?status=pending", f"/events/{second.id}", f"/events/{head.id}", "/keys"):
            text = client.get(path).text
            assert "9000-" not in text, path
            assert not re.search(r"in [\d,]{4,} ", text), path
        assert "waits behind an earlier event of" in client.get("/events").text

    def test_only_an_event_that_may_hold_back_others_can_be_skipped(
        self, box: Outbox, crm: Crm, browser: Browser
    ) -> None:
        head, *_ = block(box, crm)
        crm.rejected.add("0")
        (unkeyed,) = emit(1)
        run(box)
        for event, expected in ((head, True), (unkeyed, False)):
            page = browser.get(f"/events/{event.id}")
            assert (("action", "skip") in [each for form in page.forms for each in form.buttons]) == expected

    def test_events_are_filtered_by_their_ordering_key(self, box: Outbox, crm: Crm, browser: Browser) -> None:
        keyed("1", key="a")
        keyed("2", key="b")
        page = browser.get("/events?ordering_key=a")
        assert "1 event match" in page.text
        assert "Order:1" in page.text
        assert "Order:2" not in page.text


class TestTheOverview:
    def test_a_key_behind_a_failed_event_is_an_alert(self, box: Outbox, crm: Crm, browser: Browser) -> None:
        block(box, crm)
        page = browser.get("/")
        assert "is blocked at crm, 2 events wait behind one that has failed" in page.text
        assert page.links["See the keys"] == "/keys"

    def test_events_that_wait_behind_others_are_not_late(self, box: Outbox, crm: Crm, browser: Browser) -> None:
        block(box, crm, failed=False)
        let_pass(seconds=50)
        page = browser.get("/")
        assert "have been due for" not in page.text
        assert "ordering key" not in page.text
