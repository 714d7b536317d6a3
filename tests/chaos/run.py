"""A run, from the first process to the verdict."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.account import Account
from tests.chaos.checker import Violation, check, proof
from tests.chaos.schedule import Step
from tests.chaos.world import Stuck, World

SHOWN = 5


@dataclass(frozen=True)
class Verdict:
    """What a run has shown."""

    seed: int
    account: Account
    violations: list[Violation]
    unproven: list[str]
    stuck: str | None

    @property
    def passed(self) -> bool:
        return not self.violations and not self.unproven and self.stuck is None

    def report(self) -> str:
        return "\n".join([*self._counts(), *self._faults(), *self._failures()])

    def _counts(self) -> list[str]:
        account = self.account
        fates = Counter(transaction.fate for transaction in account.transactions)
        statuses = Counter(row.status for row in account.rows)
        accepted = Counter(delivery.destination for delivery in account.deliveries)
        happened = sum(account.happened(transaction) for transaction in account.transactions) - fates["committed"]
        keyed = sum(event.ordering_key is not None for _, event in account.emitted.values())
        return [
            f"seed            {self.seed}",
            f"transactions    {_listed(fates)}; of the unknown ones {happened} have happened",
            f"events          {_listed(statuses)}",
            f"deliveries      {_listed(accepted)}",
            f"duplicates      {_listed(account.duplicates)}",
            f"jobs' effects   {account.effects.total()}",
            f"fenced outcomes {account.fenced}",
            f"keyed events    {keyed}, of which {len(account.held_others_back)} held others back by a retry",
            f"periodic runs   {len(account.runs)} stored, {len(account.ran)} calls",
            f"emitters' errors while the database was away {len(account.errors)}",
        ]

    def _faults(self) -> list[str]:
        hits: dict[str, Counter[str]] = defaultdict(Counter)
        times = Counter(fault.what for fault in self.account.faults)
        for fault in self.account.faults:
            hits[fault.what].update(fault.hits)
        lines = [
            f"  {times[what]:>4}  {what}{f' ({_listed(hits[what])})' if hits[what] else ''}" for what in sorted(times)
        ]
        return [f"faults          {times.total()}", *lines]

    def _failures(self) -> list[str]:
        if self.passed:
            return ["every promise was kept"]
        lines = [f"FAILED; the same faults again: python3 dev.py chaos --seed {self.seed}"]
        if self.stuck is not None:
            lines.append(f"stuck: {self.stuck}")
        lines += [f"nothing is shown: {what}" for what in self.unproven]
        for violation in self.violations[:SHOWN]:
            lines.append(f"{violation.invariant}: {violation.what}" + (f": {violation.id}" if violation.id else ""))
            if violation.id is not None:
                lines += [f"    {line}" for line in self.account.history(violation.id)]
        if len(self.violations) > SHOWN:
            counts = Counter(violation.invariant for violation in self.violations)
            lines.append(f"violations in all: {_listed(counts)}")
        return lines


def run(
    folder: Path,
    seed: int,
    steps: Iterable[Step],
    *,
    seconds: float | None = None,
    breaker: bool = False,
    rabbitmq: bool = False,
    archivers: int = 1,
    on_start: Callable[[World], None] = lambda world: None,
) -> Verdict:
    """Go through the steps, for so long at most, come to rest, and check the account.

    `archivers`: how many of the workers have the archive. If not all have it, its events wait long for one that has.
    """
    stuck = None
    with World(folder, seed, breaker=breaker, with_rabbitmq=rabbitmq, archivers=archivers) as world:
        on_start(world)
        try:
            world.go_through(iter(steps), None if seconds is None else time.monotonic() + seconds)
            account = world.come_to_rest()
        except Stuck as error:
            stuck = f"{error} (during: {', '.join(world.now_going_on)})"
            account = world.halt()
    violations = check(account, in_the_end=stuck is None)
    return Verdict(seed, account, violations, proof(account) if stuck is None else [], stuck)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
