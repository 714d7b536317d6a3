"""`outbox doctor`: check the deployment for problems, and print what to do about them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict

import click

from outbox.admin.doctor.check import LEVELS, NOTE, OK, PROBLEM, WARNING, Finding
from outbox.admin.doctor.run_checks import CHECKS, run_checks, worst
from outbox.cli.options import json_option, modules_option
from outbox.cli.output import echo_json, one_line
from outbox.current_outbox import current

EXIT_CODES = {OK: 0, NOTE: 0, WARNING: 1, PROBLEM: 2}
COLOURS = {OK: "green", NOTE: "cyan", WARNING: "yellow", PROBLEM: "red"}
MIN_WIDTH, MAX_WIDTH = 60, 120


@click.command(short_help="Check the deployment for problems.")
@click.option("--thorough", is_flag=True, help="Also run slow checks: read the whole file of an SQLite database.")
@json_option
@modules_option
def doctor(thorough: bool, as_json: bool) -> None:
    """Check settings, database, Redis and processes for problems, and print what to do about them. It changes nothing.

    If workers are running, it sends them a sweep, as the scheduler does, and checks that one of them receives it.

    The exit code is 0 if all is well, 1 if there are warnings, and 2 if there are problems.
    """
    from outbox.dramatiq.broker import has_global_broker
    from outbox.dramatiq.sweep_check import SWEEP

    checks = (*CHECKS, SWEEP)
    findings = run_checks(current(), thorough=thorough, checks=checks, has_own_broker=has_global_broker())
    if as_json:
        echo_json({"level": worst(findings), "findings": [asdict(each) for each in findings]})
    else:
        click.echo(as_text(findings, _width()))
    sys.exit(EXIT_CODES[worst(findings)])


def as_text(findings: Iterable[Finding], width: int) -> str:
    """Return the findings as text: each with its advice below it. The worst come last, next to the shell's prompt."""
    by_level = sorted(findings, key=lambda each: LEVELS.index(each.level))
    margin = max((len(each.check) for each in by_level), default=0) + 11
    lines = [line for each in by_level for line in _lines(each, margin, width)]
    return "\n".join([*lines, "", _summary(by_level)])


def _lines(finding: Finding, margin: int, width: int) -> list[str]:
    head = f"{finding.level:8} {finding.check:{margin - 9}}"
    texts = textwrap.wrap(one_line(finding.what), width - margin)
    lines = [f"{head}{texts[0]}", *(" " * margin + text for text in texts[1:])]
    lines[0] = click.style(finding.level, fg=COLOURS[finding.level]) + lines[0][len(finding.level) :]
    if finding.advice is not None:
        advice = textwrap.wrap(one_line(finding.advice), width - margin, initial_indent="→ ", subsequent_indent="  ")
        lines += [" " * margin + text for text in advice]
    return lines


def _summary(findings: Iterable[Finding]) -> str:
    counts = Counter(each.level for each in findings)
    if not counts[PROBLEM] and not counts[WARNING]:
        return "All is well."
    parts = [_plural(counts[level], level) for level in (PROBLEM, WARNING) if counts[level]]
    return f"{' and '.join(parts)}."


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _width() -> int:
    """Return the width of the lines. If the output is no terminal there is no limit: each finding is one line."""
    if not sys.stdout.isatty():
        return 10_000
    return max(MIN_WIDTH, min(MAX_WIDTH, shutil.get_terminal_size().columns))
