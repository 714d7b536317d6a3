"""What happens when: a seed decides, and the same seed decides the same again."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos import faults


@dataclass(frozen=True, slots=True)
class Step:
    """A fault, perhaps another one while it lasts, and a breath after it."""

    fault: str
    inside: str | None = None
    rest_seconds: float = 0.0

    def __str__(self) -> str:
        return self.fault if self.inside is None else f"{self.fault}; meanwhile {self.inside}"


# The short form: each kind of fault that there is, once, in an order that does without long waits.
SHORT = (
    Step(faults.CRASHED["after-claim"]),
    Step(faults.RECEIVER_HANGS),
    Step(faults.REDIS_KILLED),
    Step(faults.CRASHED["after-send"]),
    Step(faults.ARCHIVER_AWAY),
    Step(faults.RECEIVER_REFUSES),
    Step(faults.COMMIT_CUT_BEFORE),
    Step(faults.COMMIT_CUT_AFTER),
    Step(faults.PAUSED),
    Step(faults.REDIS_PAUSED),
    Step(faults.SCHEDULER_KILLED),
    Step(faults.BUS_PAUSED),
    Step(faults.CRASHED["before-settle"]),
    Step(faults.CONNECTIONS_ENDED),
    Step(faults.ANSWERS_LOST),
    Step(faults.SCHEDULER_PAUSED),
    Step(faults.REDIS_FLUSHED),
    Step(faults.KILLED),
    Step(faults.POSTGRES_RESTARTED),
    Step(faults.CRASHED["after-settle"]),
    Step(faults.RECEIVER_TALKS_NONSENSE),
    Step(faults.TWO_SCHEDULERS),
    Step(faults.EMITTER_KILLED),
    Step(faults.TABLE_LOCKED),
    Step(faults.RECEIVER_KILLED),
)

# While these last, the others can happen: what they wait for is still there.
OUTER = (*faults.REDIS[:2], faults.SCHEDULER_KILLED, faults.SCHEDULER_PAUSED, faults.TWO_SCHEDULERS)
OUTER_AWAY = (faults.RECEIVER_KILLED, faults.RECEIVER_HANGS, faults.BUS_PAUSED)
INNER = (faults.COMMIT_CUT_BEFORE, faults.COMMIT_CUT_AFTER, faults.EMITTER_KILLED, faults.CONNECTIONS_ENDED)
INNER_AWAY = (*INNER, faults.POSTGRES_RESTARTED, faults.CRASHED["after-claim"], faults.KILLED)


def schedule(seed: int, *more: str) -> Iterator[Step]:
    """Without an end: every fault, and `more`, in an order that chance decides, then every fault in another."""
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    while True:
        names = [*faults.FAULTS, *more]
        chance.shuffle(names)
        for name in names:
            inside = None
            if chance.random() < 0.5:
                inside = chance.choice(INNER) if name in OUTER else inside
                inside = chance.choice(INNER_AWAY) if name in OUTER_AWAY else inside
            yield Step(name, inside, round(chance.expovariate(1.0), 2))
