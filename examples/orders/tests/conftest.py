"""Give each test the shop, on a file of its own, and an outbox that is rolled back after the test."""

import os
import tempfile

import pytest

# The shop opens this database when it is imported. It is never the one of your environment.
folder = tempfile.TemporaryDirectory(prefix="shop-tests-")
os.environ["OUTBOX_DATABASE_URL"] = f"sqlite:///{folder.name}/shop.db"

from examples.orders import services, shop  # noqa: E402  (after the environment is set)
from outbox.core import Outbox  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def tables() -> None:
    shop.open_shop()


@pytest.fixture(autouse=True)
def every_test(outbox_box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Roll back what the test writes, and give it services that no other test has called."""
    monkeypatch.setattr(shop, "cards", services.CardProvider())
    monkeypatch.setattr(shop, "mail", services.MailServer(down_seconds=0))
    monkeypatch.setattr(shop, "warehouse", services.Warehouse())
