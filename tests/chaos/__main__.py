"""`python -m tests.chaos --minutes 5 --seed 7`"""

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.chaos.destinations import HANDLER, WEBHOOK
from tests.chaos.faults import RABBITMQ_FAULTS
from tests.chaos.run import run
from tests.chaos.schedule import SHORT, Step, schedule
from tests.chaos.world import World

PROGRESS_SECONDS = 1.0
OVER_ITSELF = "\r\033[K"


def say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


class Progress:
    """A line about each step when it begins, and about how far it is, every second: over itself on a terminal."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._begun_at = time.monotonic()
        self._thread: threading.Thread | None = None
        self._told = 0

    def show(self, world: World) -> None:
        self._thread = threading.Thread(target=self._show, args=(world,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self, world: World) -> None:
        while not self._over.wait(PROGRESS_SECONDS):
            self._tell_steps(world)
            seconds = int(time.monotonic() - self._begun_at)
            line = (
                f"{seconds // 60:>3}:{seconds % 60:02}  {world.commits()} commits, "
                f"{len(world.deliveries(HANDLER))} handled, {len(world.deliveries(WEBHOOK))} posted, "
                f"{len(world.faults)} faults; now {' + '.join(list(world.now_going_on)) or 'a breath'}"
            )
            say(OVER_ITSELF + line, end="") if sys.stdout.isatty() else say(line)
        self._tell_steps(world)

    def _tell_steps(self, world: World) -> None:
        """What the seed has decided: the same lines in every run with it, as far as the time allows."""
        for number, step in enumerate(world.steps[self._told :], self._told + 1):
            say(f"{OVER_ITSELF if sys.stdout.isatty() else ''}step {number}: {step}")
            self._told = number


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 dev.py chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults are injected (default: 5)")
    parser.add_argument("--seed", type=int, default=None, help="what decides the faults (default: chance)")
    parser.add_argument("--short", action="store_true", help="the fixed list of faults that the tests go through")
    parser.add_argument("--rabbitmq", action="store_true", help="publish to RabbitMQ, too, and kill and pause it")
    parser.add_argument("--keep", action="store_true", help="keep ledgers and logs; they are kept after a failure")
    options = parser.parse_args()
    seed = random.randrange(1_000_000) if options.seed is None else options.seed  # noqa: S311 - nothing secret
    folder = Path(tempfile.mkdtemp(prefix="outbox-chaos-"))
    say(f"seed {seed}, ledgers and logs in {folder}")
    progress = Progress()
    more = tuple(RABBITMQ_FAULTS) if options.rabbitmq else ()
    steps = (*SHORT, *map(Step, more)) if options.short else schedule(seed, *more)
    seconds = None if options.short else options.minutes * 60
    try:
        kinds = {"breaker": not options.short, "rabbitmq": options.rabbitmq}
        verdict = run(folder, seed, steps, seconds=seconds, on_start=progress.show, **kinds)
    finally:
        progress.end()
    say("\n" + verdict.report())
    if verdict.passed and not options.keep:
        shutil.rmtree(folder)
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main())
