"""Collect the details of a process for its reports: its destinations, its circuit breakers, its failures.

The process reporter stores them in the column `details`. `outbox status`, `outbox doctor` and the dashboard read them,
to show each process and to find differences between processes. They contain no addresses and nothing secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outbox.delivery.drain_failures import DrainFailures
from outbox.destinations.description import describe_destination
from outbox.destinations.registry import Registry
from outbox.encryption.cipher import Cipher
from outbox.settings import Settings
from outbox.storage.models import KINDS
from outbox.throttle.throttles import Throttles
from outbox.version import __version__

# The settings that must be the same in all processes.
COMPARED_SETTINGS = ("queue", "lease_seconds", "max_run_seconds")


@dataclass(frozen=True, slots=True)
class ProcessDetails:
    """The parts of an outbox that the details come from. It holds no reference to the outbox itself."""

    settings: Settings
    registry: Registry
    throttles: Throttles
    drain_failures: DrainFailures
    cipher: Cipher | None

    def collect(self) -> dict[str, Any]:
        """Return the details as values for JSON. It may read the state of shared circuit breakers from Redis."""
        stuck = self.throttles.stuck()
        return {
            "version": __version__,
            # Code that does not report the kinds that it knows treats every row as an event.
            "kinds": list(KINDS),
            # Code that does not report this knows no ordering keys.
            "keeps_order": True,
            "destinations": {name: describe_destination(each) for name, each in self.registry.destinations.items()},
            "ignored": [pattern.text for pattern in self.registry._ignored],
            "publish_seconds": self.settings.publish_seconds,
            # The destinations whose circuit breakers it knows. A scheduler has destinations as well, and sends nothing.
            "tried": self.throttles.names(),
            "breakers": self.throttles.breakers(),
            "shares_breakers": self.throttles.is_shared,
            "stuck": stuck,
            "ready": not any(each["all_places"] for each in stuck.values()),
            "settings": {name: getattr(self.settings, name) for name in COMPARED_SETTINGS},
            "drain_failures": self.drain_failures.report(),
            # The ids of its keys. Code that does not report them delivers encrypted payloads as they are stored.
            "encryption_keys": [] if self.cipher is None else list(self.cipher.key_ids),
        }
