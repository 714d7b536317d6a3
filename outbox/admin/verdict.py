"""Summarize what is wrong with an outbox now, in one sentence: the verdict.

The findings are those of the doctor's checks that read nothing but the overview. `outbox status`, the dashboard and
`outbox doctor` all use them, so none of them says that all is well while another reports a problem.

    view = overview(box.dialect)
    findings = find(box, view)
    verdict_on(findings).sentence  # 2 problems: no worker is running, 4 events wait; crm has been unavailable
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox.admin.doctor.check import LEVELS, NOTE, OK, PROBLEM, WARNING, Finding
from outbox.admin.doctor.run_checks import CHECKS, run_checks, worst
from outbox.admin.overview import Overview

if TYPE_CHECKING:
    from outbox.core import Outbox

ALL_IS_WELL = "All is well"
# How many findings of a level the sentence names.
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst level of the findings, and what they say, in a sentence or two."""

    level: str
    sentence: str


def find(box: Outbox, view: Overview) -> list[Finding]:
    """Return what is worth knowing in an overview, the worst first; nothing if all is well."""
    checks = [check for check in CHECKS if check.everywhere]
    findings = run_checks(box, checks=checks, view=view)
    return sorted(
        (each for each in findings if each.level != OK and each.brief),
        key=lambda each: LEVELS.index(each.level),
        reverse=True,
    )


def verdict_on(findings: Iterable[Finding]) -> Verdict:
    """Return the verdict on the findings: `2 problems: no worker is running; crm has been unavailable for 14 min.`"""
    findings = list(findings)
    parts = [part for level in (PROBLEM, WARNING) if (part := _part(level, findings))]
    if not parts:
        parts = ["; ".join([ALL_IS_WELL, *_named([each for each in findings if each.level == NOTE and each.brief])])]
    return Verdict(worst(findings), "".join(f"{part}. " for part in parts).rstrip())


def _part(level: str, findings: Iterable[Finding]) -> str:
    """Return the number of the findings of a level, and what the first of them say; "" if there are none.

    If two checks have found the same, it counts once.
    """
    found = list({each.what: each for each in findings if each.level == level}.values())
    if not found:
        return ""
    number = f"{len(found)} {level}{'' if len(found) == 1 else 's'}"
    named = _named(found)
    return f"{number}: {'; '.join(named)}" if named else number


def _named(findings: list[Finding]) -> list[str]:
    """Return the first findings in a few words each, and how many more there are."""
    named = [each.brief for each in findings if each.brief][:MOST_NAMED]
    more = len(findings) - len(named)
    return [*named, f"and {more} more"] if named and more else named
