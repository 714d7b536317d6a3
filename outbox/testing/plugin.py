"""The pytest plugin: fixtures around `outbox.testing`. It imports nothing of the outbox until one of them is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import peewee

    from outbox.core import Outbox
    from outbox.testing.captured import Captured

MARKER = (
    "outbox(rollback=True, **settings): settings of the fixture outbox_box, as for outbox.configure; "
    "rollback=False lets the test commit"
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def outbox_database() -> peewee.Database | None:
    """Return the database of the tests. Override it in your conftest.py; None is that of the application's outbox."""
    return None


@pytest.fixture
def outbox_box(request: pytest.FixtureRequest, outbox_database: peewee.Database | None) -> Iterator[Outbox]:
    """Give the test an outbox in a sandbox, and a transaction that is rolled back at its end."""
    from outbox.testing.box import box_of_test

    with box_of_test(outbox_database, **_marked(request)) as box:
        yield box


@pytest.fixture
def outbox_events(outbox_box: Outbox) -> Iterator[Captured]:
    """Give the test a Captured: what it emits and sends from here on."""
    from outbox.testing.captured import capturing

    with capturing() as captured:
        yield captured


@pytest.fixture
def outbox_deliver(outbox_box: Outbox) -> Callable[..., int]:
    """Give the test `outbox.testing.deliver`, with its outbox."""
    from outbox.testing.deliver_here import deliver

    return deliver


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the settings of the markers; those that are nearer to the test win."""
    markers = reversed(list(request.node.iter_markers("outbox")))
    return {name: value for marker in markers for name, value in marker.kwargs.items()}
