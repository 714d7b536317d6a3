"""The errors of the test kit."""

from __future__ import annotations

from outbox.errors import OutboxError


class NotAccepted(OutboxError, AssertionError):
    """A destination did not accept an event, and raised nothing that could be raised instead of this."""


class NotFinished(OutboxError, AssertionError):
    """Events are still waiting after everything that the test kit may do. The text says which, and for what."""


class TransactionEnded(OutboxError, RuntimeError):
    """A handler has ended the transaction in which the test runs."""

    def __init__(self) -> None:
        super().__init__(
            "A call has ended the transaction that the test runs in, by its own commit() or rollback(), or by closing "
            "the connection. Run this test with real commits instead: @pytest.mark.outbox(rollback=False)."
        )
