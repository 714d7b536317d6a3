"""Webhooks that are closed after the test."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from outbox.destinations.webhook import Webhook
from tests.destinations.sample import MakeWebhook


@pytest.fixture
def make_webhook() -> Iterator[MakeWebhook]:
    with ExitStack() as ending:

        def make(url: str, **options: Any) -> Webhook:
            webhook = Webhook("hook", url, **options)
            ending.callback(webhook.close)
            return webhook

        yield make
