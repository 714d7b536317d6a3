"""`outbox doctor`: check the deployment for problems, and print what to do about them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click

from outbox.admin.doctor.check import LEVELS, NOTE, OK, PROBLEM, WARNING, Context, Finding
from outbox.admin.doctor.run_checks import CHECKS, each_finding, worst
from outbox.admin.verdict import verdict_on
from outbox.cli.options import json_option, modules_option
from outbox.cli.output import echo_json, one_line
from outbox.current_outbox import current

EXIT_CODES = {OK: 0, NOTE: 0, WARNING: 1, PROBLEM: 2}
COLOURS = {OK: "green", NOTE: "cyan", WARNING: "yellow", PROBLEM: "red"}
MIN_WIDTH, MAX_WIDTH = 60, 120
# The width of the level and of the gaps around the name of the check.
MARGIN = 11


@click.command(short_help="Check the deployment for problems.")
@click.option("--thorough", is_flag=True, help="Also run slow checks: read the whole file of an SQLite database.")
@json_option
@modules_option
def doctor(thorough: bool, as_json: bool) -> None:
    """Check settings, database, Redis and processes for problems, and print what to do about them. It changes nothing.

    A check without a problem is printed as soon as it has ended; warnings and problems are printed at the end.

    If workers are running, it sends them a sweep, as the scheduler does, and checks that one of them receives it.

    The exit code is 0 if all is well, 1 if there are warnings, and 2 if there are problems.
    """
    from outbox.dramatiq.broker import has_global_broker
    from outbox.dramatiq.sweep_check import SWEEP

    checks = (*CHECKS, SWEEP)
    context = Context(current(), thorough, has_own_broker=has_global_broker())
    findings: list[Finding] = []
    margin, width = MARGIN + max(len(check.name) for check in checks), _width()
    with _ending_early():
        for finding in each_finding(context, checks):
            findings.append(finding)
            if not as_json and not _is_bad(finding):
                click.echo("\n".join(_lines(finding, margin, width)))
    if as_json:
        echo_json(
            {
                "level": worst(findings),
                "verdict": verdict_on(findings).sentence,
                "findings": [each.as_data() for each in findings],
            }
        )
    else:
        click.echo(as_text(filter(_is_bad, findings), width, margin=margin, verdict=verdict_on(findings).sentence))
    sys.exit(EXIT_CODES[worst(findings)])


@contextmanager
def _ending_early() -> Iterator[None]:
    """Stop the checks at Ctrl-C. The findings until then are still printed."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("Interrupted: the other checks did not run.", err=True)


def _is_bad(finding: Finding) -> bool:
    return finding.level in (WARNING, PROBLEM)


def as_text(findings: Iterable[Finding], width: int, *, margin: int, verdict: str) -> str:
    """Return the findings as text, each with its advice below it, the worst last; and the verdict."""
    by_level = sorted(findings, key=lambda each: LEVELS.index(each.level))
    lines = [line for each in by_level for line in _lines(each, margin, width)]
    return "\n".join([*lines, "", *textwrap.wrap(one_line(verdict), width)])


def _lines(finding: Finding, margin: int, width: int) -> list[str]:
    head = f"{finding.level:8} {finding.check:{margin - 9}}"
    texts = textwrap.wrap(one_line(finding.what), width - margin)
    lines = [f"{head}{texts[0]}", *(" " * margin + text for text in texts[1:])]
    lines[0] = click.style(finding.level, fg=COLOURS[finding.level]) + lines[0][len(finding.level) :]
    if finding.advice is not None:
        advice = textwrap.wrap(one_line(finding.advice), width - margin, initial_indent="→ ", subsequent_indent="  ")
        lines += [" " * margin + text for text in advice]
    return lines


def _width() -> int:
    """Return the width of the lines. If the output is no terminal there is no limit: each finding is one line."""
    if not sys.stdout.isatty():
        return 10_000
    return max(MIN_WIDTH, min(MAX_WIDTH, shutil.get_terminal_size().columns))
