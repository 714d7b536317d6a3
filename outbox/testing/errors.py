"""The errors that `deliver` and `run_all` of the test kit raise."""

from __future__ import annotations

from outbox.errors import OutboxError


class NotAccepted(OutboxError, AssertionError):
    """A destination did not accept an event, and raised no exception of its own. The text is the outcome's error."""


class NotFinished(OutboxError, AssertionError):
    """The test kit can't deliver all events. The text says which of them wait, and for what."""


class TransactionEnded(OutboxError, RuntimeError):
    """A handler has ended the transaction in which the test runs."""

    def __init__(self) -> None:
        super().__init__(
            "A call has ended the transaction that the test runs in, by its own commit() or rollback(), or by closing "
            "the connection. Run this test with real commits instead: @pytest.mark.outbox(rollback=False)."
        )
