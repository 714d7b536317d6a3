"""Whether the promises were kept: from an account to a list of violations, each with the event it is about."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from tests.chaos import faults
from tests.chaos.account import COMMITTED, Account, Delivery, Emitted, Fault, Row, Transaction
from tests.chaos.destinations import ACTOR, ARCHIVE, HANDLER, QUEUE, STREAM, WEBHOOK

ENDED = ("delivered", "failed")
# What a broken connection is to Peewee. Anything else is no matter of the database being away.
CONNECTION_ERRORS = ("OperationalError", "InterfaceError", "InternalError")

# After these an event may come again, at whatever destination: a worker was gone, or could not settle.
LOSE_LEASES = (*faults.DEATHS, faults.PAUSED, *faults.DATABASE)
# After these, at one: it may have accepted what it could not say.
LOSE_ANSWERS = {
    HANDLER: (),
    ARCHIVE: (),
    WEBHOOK: (faults.RECEIVER_KILLED, faults.ANSWERS_LOST),
    STREAM: (faults.BUS_PAUSED,),
    ACTOR: (faults.BUS_PAUSED,),
    QUEUE: (faults.RABBITMQ_KILLED, faults.RABBITMQ_PAUSED),
}
BREAK_CONNECTIONS = (*faults.DATABASE, faults.COMMIT_CUT_BEFORE, faults.COMMIT_CUT_AFTER)


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    what: str
    id: str | None = None


def check(account: Account, *, in_the_end: bool = True) -> list[Violation]:
    """Everything that is wrong; before the end, events may still be on their way."""
    checks = [committed, fence, duplicates, order, caller, once]
    checks += [ends, effects, isolation, without_redis, every_run] if in_the_end else []
    return [violation for check in checks for violation in check(account)]


def committed(account: Account) -> Iterator[Violation]:
    """I1: nothing of a rolled-back transaction or savepoint leaves, or is even there."""
    for delivery in account.deliveries:
        if (why := _not_to_be(account, delivery.id)) is not None:
            yield Violation("I1", f"the {delivery.destination} got what {why}", delivery.id)
    for row in account.rows:
        if (why := _not_to_be(account, row.id)) is not None:
            yield Violation("I1", f"there is a row of what {why}", row.id)


def _not_to_be(account: Account, id: str) -> str | None:
    if id not in account.emitted:
        return "nobody has emitted"
    transaction, event = account.emitted[id]
    if not account.happened(transaction):
        return f"was never committed: {transaction.name} is {transaction.fate}"
    return None if event.kept else f"was rolled back to a savepoint in {transaction.name}"


def ends(account: Account) -> Iterator[Violation]:
    """I2: what was committed is delivered, or failed and says why; of a transaction all or nothing.

    I8: what counts as delivered has reached every destination, whichever worker had it.
    """
    for transaction in account.transactions:
        if transaction.fate == COMMITTED and transaction.name not in account.notes:
            yield Violation(
                "I2", f"{transaction.name} was committed, and its own row is gone", transaction.events[0].id
            )
        if account.happened(transaction):
            for event in transaction.events:
                if event.kept:
                    yield from _end_of(account, transaction, event)


def _end_of(account: Account, transaction: Transaction, event: Emitted) -> Iterator[Violation]:
    row = account.row_of.get(event.id)
    if row is not None:
        yield from _end_of_row(account, event, row)
    elif event.id not in account.replaceable:
        yield Violation("I2", f"lost: {transaction.name} was committed, and there is no row", event.id)
    elif (event.id, ACTOR) in account.delivered:
        yield Violation("I4", "it was replaced after it had run", event.id)


def _end_of_row(account: Account, event: Emitted, row: Row) -> Iterator[Violation]:
    if row.payload != event.payload:
        yield Violation("I2", "the row does not hold what was emitted", event.id)
    if row.status not in ENDED:
        yield Violation("I2", f"in limbo: it is still {row.status}", event.id)
    elif row.status == "failed":
        if not event.doomed:
            yield Violation("I2", "it failed, and nothing was wrong with it", event.id)
        if not row.error:
            yield Violation("I2", "it failed, and does not say why", event.id)
    elif event.doomed:
        yield Violation("I2", "it counts as delivered, and can only have failed", event.id)
    else:
        for destination in event.destinations:
            if (event.id, destination) not in account.delivered:
                yield Violation("I8", f"lost: it counts as delivered, and the {destination} never got it", event.id)


def effects(account: Account) -> Iterator[Violation]:
    """The inbox: a job that was committed has one effect, however often it has run; others have none."""
    for id in account.effects:
        if (why := _not_to_be(account, id)) is not None:
            yield Violation("inbox", f"there is an effect of what {why}", id)
    for id, destination in account.delivered:
        if destination == ACTOR and account.effects[id] != 1:
            yield Violation("inbox", f"it has run, and has had {account.effects[id]} effects", id)


def fence(account: Account) -> Iterator[Violation]:
    """I3: only the holder of the lease settles, nobody claims what is held, and what has ended stays as it is."""
    for trespass in account.trespasses:
        yield Violation("I3", trespass.what, trespass.id)


def duplicates(account: Account) -> Iterator[Violation]:
    """I4: a duplicate comes only after a crash, a lost lease or a lost answer; and is the same to the byte."""
    for (id, destination), deliveries in account.delivered.items():
        if len({delivery.body for delivery in deliveries}) > 1:
            yield Violation("I4", f"the {destination} got different bytes at different times", id)
        emitted = account.emitted.get(id)
        for delivery in deliveries:
            if emitted is not None and delivery.payload != emitted[1].payload:
                yield Violation("I4", f"the {destination} got other bytes than were emitted", id)
        for first, second in pairwise(deliveries):
            if not _is_excused(account, first, second):
                yield Violation("I4", f"the {destination} got it twice, without any fault in between", id)


def _is_excused(account: Account, first: Delivery, second: Delivery) -> bool:
    """Whatever made it come again has happened between the two, or around them.

    A job that was enqueued twice may wait in the queue until the fault is over, and then run twice.
    """
    reasons = (*LOSE_LEASES, *LOSE_ANSWERS[first.destination])
    is_job = first.destination == ACTOR and first.id in account.emitted
    begin = account.emitted[first.id][0].intended_at if is_job else first.at
    return any(fault.what in reasons and fault.overlaps(begin, second.at) for fault in account.faults)


def order(account: Account) -> Iterator[Violation]:
    """I5: a destination gets an event of a key for the first time only after those that were emitted before it."""
    for (key, destination), deliveries in account.first_deliveries.items():
        for (before, _), (event, _) in pairwise(deliveries):
            if event.seq < before.seq:
                what = f"the {destination} got number {before.seq} of the key {key} before number {event.seq}"
                yield Violation("I5", what, event.id)


def isolation(account: Account) -> Iterator[Violation]:
    """I6: while a destination is away, events that were committed since then get to the others.

    Calls that hang do so until the fault is over: who waits behind one is not delivered in its time, however fast or
    slow the machine is.
    """
    for fault in account.faults:
        if fault.what in faults.AWAY:
            away = faults.AWAY[fault.what]
            for destination in (HANDLER, STREAM):
                if destination != away and (passed := _passed(account, destination, fault)) < faults.ENOUGH:
                    yield Violation("I6", f"{fault.what}: only {passed} new events got to the {destination} meanwhile")


def without_redis(account: Account) -> Iterator[Violation]:
    """I9: while Redis is away, events that were committed since then are delivered."""
    for fault in account.faults:
        if fault.what in faults.REDIS_AWAY:
            for destination in (HANDLER, STREAM):
                if (passed := _passed(account, destination, fault)) < faults.ENOUGH:
                    yield Violation("I9", f"{fault.what}: only {passed} new events got to the {destination} meanwhile")


def _passed(account: Account, destination: str, fault: Fault) -> int:
    """How many events were emitted, committed and delivered within the time of a fault."""
    return sum(
        delivery.destination == destination
        and fault.begun_at <= account.emitted[delivery.id][0].intended_at
        and delivery.at <= fault.ended_at
        for delivery in account.deliveries
        if delivery.id in account.emitted
    )


def caller(account: Account) -> Iterator[Violation]:
    """I7: emitters see errors of the database while it is away, and no others; without Redis they go on."""
    for error in account.errors:
        excused = any(
            fault.what in BREAK_CONNECTIONS and fault.overlaps(error.good_at, error.at) for fault in account.faults
        )
        if error.kind not in CONNECTION_ERRORS or not excused:
            yield Violation("I7", f"an emitter got {error.kind}: {error.text.strip()}")
    for fault in account.faults:
        if fault.what in faults.REDIS:
            ended = [transaction.ended_at for transaction in account.transactions if transaction.fate == COMMITTED]
            done = sum(at is not None and fault.begun_at <= at <= fault.ended_at for at in ended)
            if done < faults.ENOUGH:
                yield Violation("I7", f"{fault.what}: only {done} transactions were committed meanwhile")


def once(account: Account) -> Iterator[Violation]:
    """Each scheduled time of the periodic job is stored at most once."""
    for at, count in Counter(account.runs).items():
        if count > 1:
            yield Violation("periodic", f"the run of {_clock(at)} was stored {count} times")


def every_run(account: Account) -> Iterator[Violation]:
    """Each scheduled time of the periodic job is stored, and run."""
    stored = set(account.runs)
    if stored:
        expected = {min(stored) + number for number in range(int(max(stored) - min(stored)) + 1)}
        for at in sorted(expected - stored):
            yield Violation("periodic", f"no run of {_clock(at)} was stored")
    for at in sorted(stored - set(account.ran)):
        yield Violation("periodic", f"the run of {_clock(at)} was stored, and never ran")


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


def proof(account: Account) -> list[str]:
    """What this run has not shown, although it was to: faults that have hit nothing prove nothing."""
    missing = [
        f"{fault.what} has hit nothing ({name})"
        for fault in account.faults
        for name in faults.MUST_HIT.get(fault.what, ())
        if not fault.hits.get(name)
    ]
    happened = {fault.what for fault in account.faults}
    fates = {transaction.fate for transaction in account.transactions}
    expected = {
        "no transaction was committed": COMMITTED in fates,
        "no transaction was rolled back": "rolled back" in fates,
        "no commit was left unknown": "unknown" in fates or not happened & set(faults.CUTS),
        "no outcome was fenced": account.fenced > 0 or faults.PAUSED not in happened,
        "no lost answer has led to a duplicate": account.duplicates[WEBHOOK] > 0 or faults.ANSWERS_LOST not in happened,
        "no event was delivered twice at the handler, although one was taken over": account.duplicates[HANDLER] > 0
        or faults.PAUSED not in happened,
        "no emitter has noticed that the database was away": bool(account.errors)
        or faults.POSTGRES_RESTARTED not in happened,
        "no event with an ordering key was retried while a later one waited": bool(account.held_others_back),
        "the periodic job has not run": bool(account.runs),
        "no job has had an effect": bool(account.effects),
        "no job was replaced": bool(account.replaceable - account.row_of.keys()),
        "no event failed, although some can only fail": any(row.status == "failed" for row in account.rows),
    }
    return missing + [what for what, shown in expected.items() if not shown]
