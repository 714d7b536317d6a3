"""Webhooks: `outbox.Webhook` sends events to a URL; `outbox.webhooks.verify` checks requests at the receiver.

This package offers the receiver's functions only. A receiver may be a small program, so nothing that sends is imported
here: `outbox.Webhook` loads `outbox.webhooks.webhook` when it is used.
"""

from __future__ import annotations

from outbox.webhooks.verify import VerificationError, new_secret, verify

__all__ = ["VerificationError", "new_secret", "verify"]
