"""The errors of proving handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox.errors import OutboxError

if TYPE_CHECKING:
    from outbox.testing.proof.proof import Proof


class CannotProve(OutboxError):
    """A handler can't be proved here: the database can't be copied, or there is no event to call it with."""


class OutsideCall(OutboxError, ConnectionError):
    """A handler that is being proved has called something outside the copy of the database, and was stopped."""


class NotSafe(OutboxError, AssertionError):
    """A handler is not safe when it is called again, at the same time, or killed. The text is the report."""

    def __init__(self, proof: Proof) -> None:
        super().__init__(str(proof))
        self.proof = proof
