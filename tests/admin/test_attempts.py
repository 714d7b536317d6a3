"""Where operators see the history of attempts: `outbox show` and the page of an event."""

import json

from click.testing import CliRunner

from outbox.admin.web import make_app
from outbox.cli import cli
from outbox.core import Outbox
from outbox.destinations.outcome import Failed
from tests.admin.web.client import Client, anybody
from tests.support.ordering import Receiver, crm
from tests.support.table import emit_one

__all__ = ["crm"]


def test_show_and_the_page_list_the_attempts(box: Outbox, crm: Receiver) -> None:
    crm.outcomes["0"] = Failed("HTTP 410: gone <b>", http_status=410)
    event = emit_one()
    box.process_pending_events()

    shown = CliRunner().invoke(cli, ["show", str(event.id)], catch_exceptions=False).output
    assert "ATTEMPT AT (UTC)" in shown
    assert "410" in shown
    (attempt,) = json.loads(CliRunner().invoke(cli, ["show", str(event.id), "--json"]).output)["attempts_made"]
    assert (attempt["destination"], attempt["outcome"], attempt["http_status"]) == ("crm", "failed", 410)

    client = Client(make_app(box, authenticate=anybody))
    page = client.get(f"/events/{event.id}").text
    assert "What was tried, the newest first" in page
    assert "HTTP 410: gone &lt;b&gt;" in page
