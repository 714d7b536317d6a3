"""`python -m benchmarks`: measure everything, each beside what it is compared with, and tell how it went."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import chart, machine, table
from benchmarks.cpu import Moment, Others
from benchmarks.ground import Ground
from benchmarks.row import Result
from benchmarks.rows import MEASUREMENTS, ONCE
from benchmarks.size import FULL, QUICK, SMOKE

CALM_SECONDS = 2.0


def main(arguments: Sequence[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    options = parse(arguments)
    began_at, results = time.monotonic(), dict[str, Result]()
    size = options.size if options.rounds is None else replace(options.size, rounds=options.rounds)
    with Ground(size, peers=options.peers) as ground:
        facts = machine.describe(ground)
        for name, fact in facts.items():
            say(f"{name}: {fact}")
        facts["before"] = look_around()
        say(f"before: {facts['before']}")
        start = Moment.now()
        try:
            run(ground, options.only, results)
        except KeyboardInterrupt:
            say("interrupted: what follows is what there is")
        others = Others.since(start)
    facts["during"] = f"{'DISTURBED: ' if others.disturb else ''}{others}"
    facts["took"] = f"{time.monotonic() - began_at:.0f} s"
    print()
    for line in table.lines(results.values()):
        print(line)
    print(f"\nduring: {facts['during']}; took {facts['took']}")
    write(options, facts, list(results.values()))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dev.py bench", description=__doc__)
    parser.add_argument("--quick", dest="size", action="store_const", const=QUICK, default=FULL,
                        help="fewer events and rounds: under three minutes without peers")  # fmt: skip
    parser.add_argument("--smoke", dest="size", action="store_const", const=SMOKE,
                        help="hardly any events: shows that everything runs, the numbers mean nothing")  # fmt: skip
    parser.add_argument("--peers", action="store_true", help="install and measure what others use instead, too")
    parser.add_argument("--rounds", type=int, metavar="N", help="so many, instead of as many as the size has")
    parser.add_argument("--only", type=names, default=list(MEASUREMENTS), metavar="NAME,…",
                        help=f"of {', '.join(MEASUREMENTS)}")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, for machines")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the results there")
    return parser.parse_args(arguments)


def names(text: str) -> list[str]:
    wanted = [name.strip() for name in text.split(",")]
    for name in wanted:
        if name not in MEASUREMENTS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(MEASUREMENTS)}")
    return wanted


def run(ground: Ground, only: Iterable[str], results: dict[str, Result]) -> None:
    """Everything once, then everything again: what changes with time changes for all."""
    rounds = ground.size.rounds
    for ground.round in range(rounds):
        for name in only:
            if ground.round > 0 and name in ONCE:
                continue
            began = Moment.now()
            touched = []
            for sample in MEASUREMENTS[name](ground):
                result = results.setdefault(sample.row.title, Result(sample.row))
                result.add(sample)
                touched.append(result)
                told = sample.reason if sample.value is None else f"{table.shown(sample.value)} {sample.row.unit}"
                say(f"round {ground.round + 1}/{rounds}  {sample.row.title}: {sample.side}: {told}")
            others = Others.since(began)
            for result in touched:
                result.disturbed |= others.disturb
            if others.disturb:
                say(f"round {ground.round + 1}/{rounds}  {name} was disturbed: {others}")


def look_around() -> str:
    """What others do while we do nothing."""
    start = Moment.now()
    time.sleep(CALM_SECONDS)
    others = Others.since(start)
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return f"{'DISTURBED: ' if others.disturb else ''}{others}, load average {load}"


def write(options: argparse.Namespace, facts: dict[str, str], results: list[Result]) -> None:
    if options.json is not None:
        options.json.write_text(json.dumps({"facts": facts, "rows": list(map(as_json, results))}, indent=2) + "\n")
    if options.svg is not None:
        options.svg.write_text(chart.draw(results, facts))


def as_json(result: Result) -> dict[str, Any]:
    medians = {side: result.median(side) for side in result.values}
    judged = {"ratio": result.ratio, "met": result.is_met, "disturbed": result.disturbed}
    return {**asdict(result.row), "medians": medians, "values": result.values, "missing": result.missing, **judged}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
