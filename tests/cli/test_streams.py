"""`outbox streams`: how far the consumers of streams and queues are behind."""

import json
import re

from outbox.core import Outbox
from tests.cli.conftest import Command
from tests.support.streams import report_consumer


def test_without_consumers_it_says_so(command: Command) -> None:
    assert command("streams").output == "No consumer of a stream or queue has reported lately.\n"
    assert json.loads(command("streams", "--json").output) == []


def test_it_lists_what_is_furthest_behind_first(box: Outbox, command: Command) -> None:
    report_consumer(box, stream="orders", group="billing", behind=5, pending=9, processed=10, parked=1)
    report_consumer(box, stream="mails", kind="queue", pending_is_own=True, behind=1_700, pending=2)
    head, *lines = command("streams").stdout.splitlines()
    assert head.split() == [
        "STREAM", "KIND", "GROUP", "BEHIND", "PENDING", "PROCESSED", "PARKED", "CONSUMERS", "REPORTED",
    ]  # fmt: skip
    assert [re.split(r"\s{2,}", line)[:-1] for line in lines] == [
        ["mails", "queue", "1,700", "2", "0", "0", "1"],
        ["orders", "stream", "billing", "5", "9", "10", "1", "1"],
    ]
    mails, orders = json.loads(command("streams", "--json").output)
    assert (mails["kind"], mails["depth"], orders["group"], orders["depth"]) == ("queue", 1_702, "billing", 14)
