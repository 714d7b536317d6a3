"""What a worker loads that enqueues jobs."""

from __future__ import annotations

from benchmarks.actors import declare

declare()
