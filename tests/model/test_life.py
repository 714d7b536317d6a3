"""Whatever happens to events, in whatever order, the table is as the model says."""

from collections.abc import Iterator

import pytest
from hypothesis.stateful import run_state_machine_as_test

from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage.connect import open_database
from tests.conftest import Configure
from tests.model.machine import SETTINGS, Machine
from tests.support.thoroughness import thorough


@pytest.fixture
def application(url: str) -> Iterator[Outbox]:
    """The emitting side, on a connection of its own."""
    box = Outbox(Settings(dispatch="off", publish_seconds=0), database=open_database(url))
    yield box
    box.database.close_all()  # type: ignore[attr-defined]


def test_any_interleaving_leaves_the_table_as_the_model_has_it(configure: Configure, application: Outbox) -> None:
    box = configure(**SETTINGS)

    class OnThisDatabase(Machine):
        def __init__(self) -> None:
            super().__init__(box, application)

    run_state_machine_as_test(OnThisDatabase, settings=thorough(40, stateful_step_count=40))
