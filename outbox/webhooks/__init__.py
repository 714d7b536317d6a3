"""Webhooks: sending them, and the receiver's half, which is public: `outbox.webhooks.verify`."""

from __future__ import annotations

from outbox.webhooks.verify import VerificationError, new_secret, verify

__all__ = ["VerificationError", "new_secret", "verify"]
