"""Make webhooks that are closed after the test."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from outbox.webhooks.webhook import Webhook
from tests.webhooks.deliveries import MakeWebhook


@pytest.fixture(params=["httpx", "curl"])
def client(request: pytest.FixtureRequest) -> str:
    """Run each test with both HTTP libraries."""
    return str(request.param)


@pytest.fixture
def make_webhook(client: str) -> Iterator[MakeWebhook]:
    with ExitStack() as ending:

        def make(url: str, **options: Any) -> Webhook:
            chosen = {} if "transport" in options else {"client": client}
            webhook = Webhook("hook", url, **chosen | options)
            ending.callback(webhook.close)
            return webhook

        yield make
