"""The navigation of the documentation site: every page, in the order in which the site lists it.

A section's first page is its index. A page that is missing here fails the build, and a test.
"""

from __future__ import annotations

HOME = "index.md"

SECTIONS = {
    "tutorial/index.md": (
        "tutorial/jobs.md",
        "tutorial/first-event.md",
        "tutorial/servers.md",
        "tutorial/failures.md",
        "tutorial/production.md",
    ),
    "how-to/index.md": (
        "how-to/existing-application.md",
        "how-to/jobs.md",
        "how-to/emitting.md",
        "how-to/async.md",
        "how-to/ordering.md",
        "how-to/typed-events.md",
        "how-to/handlers.md",
        "how-to/periodic-jobs.md",
        "how-to/destinations.md",
        "how-to/message-brokers.md",
        "how-to/debezium.md",
        "how-to/webhooks.md",
        "how-to/testing.md",
        "how-to/proving.md",
        "how-to/receiving-webhooks.md",
        "how-to/inbox.md",
        "how-to/consuming.md",
        "how-to/deploying.md",
        "how-to/production-checklist.md",
        "how-to/kubernetes.md",
        "how-to/migrations.md",
        "how-to/several-databases.md",
        "how-to/pgbouncer.md",
        "how-to/permissions.md",
        "how-to/encryption.md",
        "how-to/regulated.md",
        "how-to/operations.md",
        "how-to/control.md",
        "how-to/erasing.md",
        "how-to/dashboard.md",
        "how-to/monitoring.md",
        "how-to/upgrading.md",
    ),
    "explanation/index.md": (
        "explanation/jobs.md",
        "explanation/events.md",
        "explanation/guarantees.md",
        "explanation/comparison.md",
        "explanation/performance.md",
        "explanation/planning.md",
        "explanation/versions.md",
        "explanation/decisions/index.md",
    ),
    "explanation/decisions/index.md": (
        "explanation/decisions/row-is-the-truth.md",
        "explanation/decisions/jobs-are-rows.md",
        "explanation/decisions/lease-without-index.md",
        "explanation/decisions/scan-position.md",
        "explanation/decisions/no-wait-for-the-disk.md",
        "explanation/decisions/expired-leases-alone.md",
        "explanation/decisions/database-clock.md",
        "explanation/decisions/json-as-text.md",
        "explanation/decisions/encryption.md",
        "explanation/decisions/typed-events.md",
        "explanation/decisions/wake-up-flag.md",
        "explanation/decisions/direct-wake-ups.md",
        "explanation/decisions/blocking-consumer.md",
        "explanation/decisions/fallback-poller.md",
        "explanation/decisions/release.md",
        "explanation/decisions/thread-per-destination.md",
        "explanation/decisions/event-loop-thread.md",
        "explanation/decisions/throttle.md",
        "explanation/decisions/recorded-destinations.md",
        "explanation/decisions/put-off.md",
        "explanation/decisions/ordering.md",
        "explanation/decisions/httpcore.md",
        "explanation/decisions/libcurl.md",
        "explanation/decisions/attempts-at-the-claim.md",
        "explanation/decisions/sqlite-row-id.md",
        "explanation/decisions/periodic-compare-and-set.md",
        "explanation/decisions/dispatch-entry-point.md",
        "explanation/decisions/process-group.md",
        "explanation/decisions/documentation-site.md",
    ),
    "reference/index.md": (
        "reference/python.md",
        "reference/destinations.md",
        "reference/inbox.md",
        "reference/testing.md",
        "reference/errors.md",
        "reference/settings.md",
        "reference/commands.md",
        "reference/doctor.md",
        "reference/metrics.md",
        "reference/logs.md",
        "reference/tables.md",
    ),
}

# Pages of the site that are not in docs/.
PROJECT = {
    "README.md": "project/readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}

# Titles for the navigation, where the page's own would say too little there.
TITLES = {"project/readme.md": "README"}

# What the navigation of the whole site lists: the sections, and the project's own pages.
TOP = (*(section for section in SECTIONS if section.count("/") == 1), *PROJECT.values())
