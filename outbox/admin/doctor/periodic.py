"""Check that the periodic jobs run: a scheduler that has declared them must be running."""

from __future__ import annotations

from collections.abc import Iterator

from outbox.admin.doctor.check import Context, Finding, ok, problem, warning
from outbox.admin.durations import format_duration


def overdue_jobs(context: Context) -> Iterator[Finding]:
    """Check that no periodic job is overdue, and that a running scheduler has each of them."""
    views = context.overview.periodic
    paused = [view for view in views if view.job.paused]
    findings = []
    for view in views:
        name = view.job.name
        if view.is_overdue:
            since = format_duration(view.now - view.job.next_run_at)
            cause = (
                "no running scheduler has it" if view.is_absent else "a scheduler has it, but could not store its run"
            )
            findings.append(
                problem(
                    f"The periodic job {name} should have run {since} ago: {cause}.",
                    f"Start `outbox scheduler your.module` with the module that declares {name}, and read its log. If "
                    "the job was removed from the code, run `outbox periodic forget NAME`.",
                    brief=f"the periodic job {name} is overdue by {since}",
                    page="periodic",
                )
            )
        elif view.is_absent and not view.job.paused:
            findings.append(
                warning(
                    f"No running scheduler has the periodic job {name}.",
                    f"Start `outbox scheduler your.module` with the module that declares {name}. If the job was "
                    "removed from the code, run `outbox periodic forget NAME`.",
                    brief=f"no scheduler has the periodic job {name}",
                    page="periodic",
                )
            )
    yield from findings
    if not findings:
        yield ok(
            f"{len(views)} periodic jobs: {len(views) - len(paused)} are scheduled, {len(paused)} are paused."
            if views
            else "No periodic job is declared."
        )
