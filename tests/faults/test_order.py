"""Order per key with real workers that are killed at random, a destination that fails, and one that is away.

OUTBOX_TEST_ORDERED_EVENTS=20000 makes it a longer run, with so many events.
"""

import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

import outbox
from outbox.events.new_event import NewEvent
from tests.support.processes import MakeStage, Stage, whole_lines
from tests.support.servers import wait_until

EVENTS = int(os.environ.get("OUTBOX_TEST_ORDERED_EVENTS", "4000"))
KEYS = 200
WORKERS, KILLS = 2, 4
DESTINATIONS = ("sound", "failing", "away")
PATIENCE_SECONDS = 60.0

Deliveries = dict[tuple[str, str], list[int]]


class Fleet:
    """Workers, of which one is killed after so many deliveries, and what the destinations have got."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.workers = [stage.worker("tests.apps.in_order") for _ in range(WORKERS)]
        self._chance = random.Random(7)  # noqa: S311 - nothing secret
        self.kills = 0

    def count(self) -> int:
        return len(whole_lines(self.stage.ledger))

    def wait_for_more(self, deliveries: int) -> None:
        before = self.count()
        self.wait_for(lambda: self.count() >= before + deliveries, f"{deliveries} more deliveries")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        if not wait_until(condition, PATIENCE_SECONDS):
            rows = Counter(self.stage.rows("status", "order_state", "lease_until < now()"))
            pytest.fail(f"did not come true: {what}. Status, order, whether the lease has expired: {rows}")

    def kill_one(self) -> None:
        """Kill a worker in the midst of its work, and start another."""
        worker = self._chance.choice(self.workers)
        worker.kill()
        self.workers.remove(worker)
        self.workers.append(self.stage.worker("tests.apps.in_order"))
        self.kills += 1

    def deliveries(self) -> Deliveries:
        """The numbers of the events that each destination got, by destination and key, in their order."""
        found: Deliveries = defaultdict(list)
        for line in whole_lines(self.stage.ledger):
            name, key, number = line.split()
            found[name, key].append(int(number))
        return found


def emit(stage: Stage, numbers: range) -> None:
    """Commit the events of these numbers, of all keys in turn, so that each batch has many keys."""
    keys = [*(f"k{number}" for number in range(KEYS - 1)), "refused"]
    with stage.box.dialect.connection():
        for number in numbers:
            stage.box.emit_many(
                NewEvent(
                    "Thing", str(number), "test.emitted", {}, ordering_key=key,
                    idempotency_key=outbox.UNIQUE, max_attempts=1_000,
                )
                for key in keys
            )  # fmt: skip


def firsts(numbers: list[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


def test_first_deliveries_are_in_order_whatever_is_killed_fails_or_is_away(
    make_stage: MakeStage, tmp_path: Path
) -> None:
    stage = make_stage(lease_seconds=1, backoff_cap_seconds=1)
    away, refused = tmp_path / "away", tmp_path / "refused"
    stage.environment |= {"OUTBOX_TEST_AWAY": str(away), "OUTBOX_TEST_REFUSED": str(refused)}
    away.touch()
    refused.touch()
    stage.scheduler()
    fleet = Fleet(stage)
    per_key = EVENTS // KEYS
    expected = list(range(per_key))
    slices = [range(kill * per_key // KILLS, (kill + 1) * per_key // KILLS) for kill in range(KILLS)]

    # One destination is away, and at another one a key is blocked: all else gets there meanwhile.
    for numbers in slices:
        emit(stage, numbers)
        fleet.wait_for_more(EVENTS // (4 * KILLS))
        fleet.kill_one()
    others = [("sound", f"k{number}") for number in range(KEYS - 1)] + [("failing", f"k{n}") for n in range(KEYS - 1)]

    def others_have_all() -> bool:
        if fleet.count() < len(others) * per_key:
            return False
        found = fleet.deliveries()
        return all(len(set(found[other])) == per_key for other in (*others, ("sound", "refused")))

    fleet.wait_for(others_have_all, "other keys and destinations get everything")
    found = fleet.deliveries()
    assert ("failing", "refused") not in found
    assert not any(name == "away" for name, _ in found)

    refused.unlink()
    away.unlink()
    fleet.wait_for_more(EVENTS // 4)
    fleet.kill_one()
    fleet.wait_for(lambda: set(stage.statuses()) == {"delivered"}, "every event is delivered")
    found = fleet.deliveries()
    assert set(found) == {(name, key) for name in DESTINATIONS for _, key in [*others[: KEYS - 1], ("", "refused")]}
    assert {pair: firsts(numbers) for pair, numbers in found.items()} == dict.fromkeys(found, expected)
    assert fleet.kills == KILLS + 1
    with stage.box.dialect.connection():
        assert stage.box.dialect.run("SELECT count(*) FROM outbox_waiting").fetchone() == (0,)
