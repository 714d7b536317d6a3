"""Whatever happens, in whatever order: no destination gets an event of a key before an earlier one that it lacks."""

from hypothesis.stateful import run_state_machine_as_test

from tests.conftest import Configure
from tests.model.machine import SETTINGS
from tests.model.order_machine import OrderMachine
from tests.support.thoroughness import thorough


def test_any_interleaving_keeps_the_order_of_a_key_at_each_destination(configure: Configure) -> None:
    box = configure(**SETTINGS)

    class OnThisDatabase(OrderMachine):
        def __init__(self) -> None:
            super().__init__(box)

    run_state_machine_as_test(OnThisDatabase, settings=thorough(25, stateful_step_count=25))
