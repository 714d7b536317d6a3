"""The dashboard as a browser on the same machine sees it, without the network."""

import pytest

from outbox.admin.web import make_app
from outbox.core import Outbox
from tests.admin.web.browser import Browser
from tests.admin.web.client import Client, anybody
from tests.support.processes import make_stage, stage

__all__ = ["make_stage", "stage"]


@pytest.fixture
def client(box: Outbox) -> Client:
    return Client(make_app(box, authenticate=anybody))


@pytest.fixture
def browser(client: Client) -> Browser:
    return Browser(client)
