"""What the ledgers and the table say, as values: the checker knows nothing else."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from tests.chaos.destinations import DESTINATIONS, HANDLER
from tests.chaos.emitter import COMMITTED, ROLLED_BACK, UNKNOWN

__all__ = [
    "COMMITTED",
    "ROLLED_BACK",
    "UNKNOWN",
    "Account",
    "Delivery",
    "Emitted",
    "Error",
    "Fault",
    "Row",
    "Transaction",
    "Trespass",
    "transactions",
]


@dataclass(frozen=True, slots=True)
class Emitted:
    """An event or a job, in its emitter's words.

    Not `kept`: its savepoint was rolled back, or it was replaced or cancelled in its own transaction. `doomed`: it can
    only fail. `key`: a later job with this key may take its place. `ordering_key`: its place there is `seq`.
    """

    id: str
    kind: str
    payload: str
    kept: bool = True
    doomed: bool = False
    key: str | None = None
    ordering_key: str | None = None
    seq: int = 0

    @property
    def destinations(self) -> tuple[str, ...]:
        return DESTINATIONS[self.kind]


@dataclass(frozen=True, slots=True)
class Transaction:
    name: str
    fate: str
    events: tuple[Emitted, ...]
    intended_at: float
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A destination has accepted an event. `body`: all that it got; `payload`: what was emitted."""

    id: str
    destination: str
    body: str
    payload: str
    at: float


@dataclass(frozen=True, slots=True)
class Fault:
    """What happened, from when until when, and what it hit."""

    what: str
    begun_at: float
    ended_at: float
    hits: Mapping[str, int] = field(default_factory=dict)

    def overlaps(self, begin: float, end: float) -> bool:
        return self.begun_at <= end and self.ended_at >= begin


@dataclass(frozen=True, slots=True)
class Error:
    """An emitter was told that something failed; `good_at`: when all was well with it for the last time."""

    kind: str
    text: str
    at: float
    good_at: float


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    status: str
    payload: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Trespass:
    """What the table's own watch has seen: somebody has written what was not theirs to write."""

    id: str
    what: str


@dataclass(frozen=True)
class Account:
    transactions: list[Transaction]
    deliveries: list[Delivery]
    faults: list[Fault]
    errors: list[Error]
    rows: list[Row]
    notes: set[str]  # the transactions that have left the application's own row
    trespasses: list[Trespass] = field(default_factory=list)
    fenced: int = 0
    changes: Mapping[str, list[tuple[float, str]]] = field(default_factory=dict)
    # The scheduled times of the periodic job: of all runs that were stored, and of all calls.
    runs: list[float] = field(default_factory=list)
    ran: list[float] = field(default_factory=list)
    effects: Counter[str] = field(default_factory=Counter)  # of jobs, by the id of the message
    retried: set[str] = field(default_factory=set)  # the events that the handler accepted after it had refused them

    @cached_property
    def replaceable(self) -> set[str]:
        """The jobs whose key another one has that was committed later: it may have taken over the row, too."""
        latest: dict[str, str] = {}
        found = set()
        for transaction in self.transactions:
            for job in transaction.events:
                if job.key is not None and job.kept and self.happened(transaction):
                    found.add(latest.get(job.key, job.id))
                    latest[job.key] = job.id
        return found - set(latest.values())

    @cached_property
    def emitted(self) -> dict[str, tuple[Transaction, Emitted]]:
        return {event.id: (transaction, event) for transaction in self.transactions for event in transaction.events}

    @cached_property
    def delivered(self) -> dict[tuple[str, str], list[Delivery]]:
        """By event and destination, in their order."""
        found: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
        for delivery in sorted(self.deliveries, key=lambda delivery: delivery.at):
            found[delivery.id, delivery.destination].append(delivery)
        return found

    @cached_property
    def first_deliveries(self) -> dict[tuple[str, str], list[tuple[Emitted, Delivery]]]:
        """By ordering key and destination: the events, each with its first delivery there, in the order of these."""
        found: dict[tuple[str, str], list[tuple[Emitted, Delivery]]] = defaultdict(list)
        firsts = (deliveries[0] for deliveries in self.delivered.values())
        for first in sorted(firsts, key=lambda delivery: delivery.at):
            if first.id in self.emitted and (key := (event := self.emitted[first.id][1]).ordering_key) is not None:
                found[key, first.destination].append((event, first))
        return found

    @cached_property
    def held_others_back(self) -> set[str]:
        """The events that were retried at the handler while a later one of their key was committed already."""
        found = set()
        for transaction in self.transactions:
            for event in transaction.events:
                first = self.delivered.get((event.id, HANDLER))
                if event.ordering_key is None or event.id not in self.retried or first is None:
                    continue
                later = (
                    each
                    for other in self.transactions
                    if other.ended_at is not None and other.ended_at < first[0].at and self.happened(other)
                    for each in other.events
                )
                if any(each.ordering_key == event.ordering_key and each.seq > event.seq for each in later):
                    found.add(event.id)
        return found

    @cached_property
    def row_of(self) -> dict[str, Row]:
        return {row.id: row for row in self.rows}

    def happened(self, transaction: Transaction) -> bool:
        """Whether it was committed; of an unknown one, the application's own row tells."""
        return transaction.fate == COMMITTED or (transaction.fate == UNKNOWN and transaction.name in self.notes)

    @cached_property
    def duplicates(self) -> Counter[str]:
        """By destination."""
        counts: Counter[str] = Counter()
        for (_, destination), deliveries in self.delivered.items():
            counts[destination] += len(deliveries) - 1
        return counts

    def history(self, id: str) -> list[str]:
        """Everything that is known about an event, in its order, with the faults that fell into its time."""
        moments: list[tuple[float, str]] = list(self.changes.get(id, ()))
        if id in self.emitted:
            transaction, event = self.emitted[id]
            moments.append((transaction.intended_at, f"emitted in {transaction.name} as {event}"))
            if transaction.ended_at is not None:
                moments.append((transaction.ended_at, f"{transaction.name} is {transaction.fate}"))
        moments += [
            (delivery.at, f"accepted by the {delivery.destination}, body {delivery.body}")
            for delivery in self.deliveries
            if delivery.id == id
        ]
        if moments:
            begin, end = min(moments)[0], max(moments)[0]
            for fault in self.faults:
                if fault.overlaps(begin, end):
                    moments += [(fault.begun_at, f"fault: {fault.what}"), (fault.ended_at, f"over: {fault.what}")]
        lines = [f"{datetime.fromtimestamp(at, UTC):%H:%M:%S.%f}  {what}" for at, what in sorted(moments)]
        row = self.row_of.get(id)
        return [*lines, f"in the end: {'no row' if row is None else row}"]


def transactions(lines: Iterable[Mapping[str, Any]]) -> list[Transaction]:
    """From the emitters' ledgers."""
    lines = list(lines)
    ends = {line["transaction"]: line for line in lines if line["what"] == "ended"}
    found = []
    for line in lines:
        if line["what"] == "intended":
            end = ends.get(line["transaction"])
            events = tuple(Emitted(**event) for event in line["events"])
            fate = UNKNOWN if end is None else end["fate"]
            ended_at = None if end is None else end["at"]
            found.append(Transaction(line["transaction"], fate, events, line["at"], ended_at))
    return found
