"""How much a run measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """The full run."""

    name: str = "full"
    rounds: int = 3
    events: int = 20_000
    emits: int = 4_000
    transactions: int = 2_000
    webhooks: int = 5_000
    transfers: int = 20_000
    embedded: int = 5_000
    latencies: int = 500
    idle_seconds: float = 12.0
    few_delivered: int = 10_000
    many_delivered: int = 10_000_000
    few_waiting: int = 10_000
    many_waiting: int = 1_000_000
    held_seconds: float = 60.0
    free_seconds: float = 10.0
    in_flight: int = 50_000
    memory: bool = True


FULL = Size()
QUICK = Size(
    name="quick",
    rounds=2,
    events=8_000,
    emits=1_500,
    transactions=500,
    webhooks=1_500,
    transfers=8_000,
    embedded=2_000,
    latencies=150,
    idle_seconds=4.0,
    many_delivered=300_000,
    many_waiting=60_000,
    held_seconds=10.0,
    free_seconds=3.0,
    memory=False,
)
# Only to see that everything runs: its numbers mean nothing.
SMOKE = Size(
    name="smoke",
    rounds=1,
    events=1_500,  # more than a large batch
    emits=40,
    transactions=20,
    webhooks=250,
    transfers=250,
    embedded=300,
    latencies=10,
    idle_seconds=0.2,
    few_delivered=200,
    many_delivered=400,
    few_waiting=200,
    many_waiting=400,
    held_seconds=0.5,
    free_seconds=0.5,
    in_flight=300,
)
