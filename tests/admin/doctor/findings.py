"""Run one check of the doctor, and read its findings."""

from typing import Any

from outbox.admin.doctor.check import LEVELS, Finding, Thresholds
from outbox.admin.doctor.run_checks import CHECKS, run_checks
from outbox.core import Outbox


def findings_of(box: Outbox, check: str, *, thorough: bool = False, **thresholds: Any) -> list[Finding]:
    """Return the findings of one check, the worst first; no other check runs."""
    (chosen,) = [each for each in CHECKS if each.name == check]
    found = run_checks(box, thorough=thorough, thresholds=Thresholds(**thresholds), checks=[chosen])
    assert found
    return sorted(found, key=lambda each: LEVELS.index(each.level), reverse=True)


def finding_of(box: Outbox, check: str, *, thorough: bool = False, **thresholds: Any) -> Finding:
    """Return the worst finding of one check."""
    return findings_of(box, check, thorough=thorough, **thresholds)[0]


def advice_of(finding: Finding) -> str:
    assert finding.advice is not None
    return finding.advice


def commands_in(finding: Finding) -> list[str]:
    """Return the commands in a finding's advice."""
    return advice_of(finding).split("`")[1::2]
