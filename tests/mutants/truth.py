"""What is broken of the answers that operators get: counts, causes, the verdict, probes, archives."""

from tests.mutants.mutant import Mutant

OVERVIEW = "tests/admin/test_overview.py"
ARCHIVE = "tests/operations/test_archive.py"
HEALTH = "tests/cli/test_health.py"
LOCKS = "tests/admin/test_lock_waits.py"
FAILURES = "outbox/admin/failures.py"
MAKING_DUE = "tests/delivery/test_controls.py::TestMakingDueSooner"

TRUTH = [
    Mutant(
        "truth-failures-at-a-destination-are-those-of-the-shown-causes",
        FAILURES,
        "    for each in causes:\n        at[each.destination]",
        "    for each in causes[:most_causes]:\n        at[each.destination]",
        (f"{OVERVIEW}::TestFailures::test_are_counted_by_destination_and_not_by_the_most_frequent_causes[sqlite]",),
    ),
    Mutant(
        "truth-the-first-time-of-a-cause-is-that-of-its-last-group",
        FAILURES,
        "= min(cause.first_at, first), max(cause.last_at, last)",
        "= first, last",
        (f"{OVERVIEW}::TestFailures::test_of_a_cause_have_a_first_and_a_last_time[sqlite]",),
    ),
    Mutant(
        "truth-an-action-waits-for-ever-for-a-lock",
        "outbox/storage/postgres.py",
        "(str(int(self.lock_seconds * 1000)),)",
        '("0",)',
        ("tests/operations/test_lock_limits.py::test_the_limit_ends_with_its_block[postgres]",),
    ),
    Mutant(
        "truth-what-recover-makes-due-is-made-due-again",
        "outbox/operations/controls.py",
        "unchanged_since=began_at,",
        "unchanged_since=timestamp.LATEST,",
        (f"{MAKING_DUE}::test_an_operators_recover_ends_although_a_throttle_puts_events_off_again[sqlite]",),
    ),
    Mutant(
        "truth-the-latest-report-wins-where-each-process-has-a-breaker-of-its-own",
        "outbox/admin/processes.py",
        'if not process.details.get("shares_breakers", True):',
        "if False:",
        (f"{OVERVIEW}::TestProcesses::test_an_open_breaker_wins_where_each_process_has_its_own[sqlite]",),
    ),
    Mutant(
        "truth-the-status-of-a-response-is-a-number-like-any-other",
        FAILURES,
        "match[0] if match[1] else",
        "",
        (f"{OVERVIEW}::test_a_cause_is_what_errors_have_in_common",),
    ),
    Mutant(
        "truth-a-session-that-waits-itself-is-named",
        "outbox/admin/lock_waits.py",
        "    return seen - waiting.keys()\n",
        "    return seen\n",
        (f"{LOCKS}::test_the_session_at_the_head_of_a_queue_is_named_and_no_other[postgres]",),
    ),
    Mutant(
        "truth-our-own-process-is-to-be-ended",
        "outbox/admin/doctor/locks.py",
        "    if root.is_own:\n",
        "    if False:\n",
        (f"{LOCKS}::test_a_process_of_the_outbox_is_never_to_be_ended[postgres]",),
    ),
    Mutant(
        "truth-a-limit-on-statements-stays",
        "outbox/storage/postgres.py",
        "                    self.run(self.SET_TIMEOUT, (before,))\n",
        "                    pass\n",
        (f"{LOCKS}::test_a_limit_on_statements_ends_with_its_block_and_the_shorter_one_holds[postgres]",),
    ),
    Mutant(
        "truth-liveness-asks-the-database",
        "outbox/cli/health.py",
        "    if not reasons and not only_live:\n",
        "    if not reasons:\n",
        (f"{HEALTH}::TestLiveness::test_needs_no_database_and_no_broker",),
    ),
    Mutant(
        "truth-a-process-that-hangs-is-alive",
        "outbox/cli/health.py",
        "        if each.age_seconds > max_age\n",
        "        if each.age_seconds > max_age + 3600\n",
        (f"{HEALTH}::TestLiveness::test_a_process_that_is_stopped_is_not_alive",),
    ),
    Mutant(
        "truth-events-are-deleted-though-their-file-is-not-what-was-written",
        "outbox/operations/archive.py",
        "        if _digest(gzip.decompress(unfinished.read_bytes())) != _digest(content):\n",
        "        if False:\n",
        (f"{ARCHIVE}::test_nothing_is_deleted_without_a_file[sqlite-a faulty disk]",),
    ),
    Mutant(
        "truth-the-clean-up-archives-nothing",
        "outbox/operations/archive.py",
        "    if directory is None:\n        return retention",
        "    if True:\n        return retention",
        (f"{ARCHIVE}::test_the_clean_up_archives_if_a_directory_is_set[sqlite]",),
    ),
    Mutant(
        "truth-the-metrics-are-an-error-while-the-database-is-down",
        "outbox/admin/metrics.py",
        "            return [_up(0)]\n",
        "            raise\n",
        ("tests/admin/test_metrics.py::test_a_collector_without_a_database_exposes_up_0_only[sqlite]",),
    ),
]
