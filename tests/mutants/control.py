"""What is broken of the control that operators have over deliveries: pauses, attempts, bulk actions, erasure."""

from tests.mutants.mutant import Mutant

CONTROLS = "tests/delivery/test_controls.py"
PAUSED = f"{CONTROLS}::TestAPausedDestination"
SHARE = "outbox/delivery/share.py"

BULK = "tests/operations/test_bulk_actions.py"
CLI = "tests/cli/test_control.py"
PAGE = "tests/admin/web/test_control.py"
APPLY = "outbox/operations/apply_action.py"

CONTROL = [
    Mutant(
        "control-a-stop-is-ignored",
        APPLY,
        "            if entry.stop_by is not None:\n",
        "            if False:\n",
        (f"{BULK}::TestABulkAction::test_stops_after_its_batch_when_an_operator_says_so",),
    ),
    Mutant(
        "control-a-stop-is-in-no-entry",
        "outbox/operations/bulk_actions.py",
        '        audit.note(dialect, operator, STOP, {"stopped": str(id)})\n',
        "",
        (f"{BULK}::TestABulkAction::test_has_an_entry_of_who_wanted_it_to_stop_even_if_it_ends_by_itself",),
    ),
    Mutant(
        "control-a-resume-ends-before-its-end",
        "outbox/operations/controls.py",
        "        if not goes_on:\n",
        "        if True:\n",
        (f"{CLI}::test_a_resume_that_is_interrupted_before_all_events_are_due_ends_as_interrupted",),
        also=(
            (
                "outbox/operations/controls.py",
                "    with dialect.connection(), audit.ending(begun):\n        return was_paused[0]",
                "    if True:\n        return was_paused[0]",
            ),
        ),
    ),
    Mutant(
        "control-a-bulk-action-is-continued-from-its-beginning",
        APPLY,
        "        after = UUID(int=0) if continuing is None else continuing.after\n",
        "        after = UUID(int=0)\n",
        (f"{BULK}::TestABulkAction::test_is_continued_where_it_has_ended_with_all_its_parameters",),
    ),
    Mutant(
        "control-everything-is-deleted-by-a-click",
        "outbox/admin/web/actions.py",
        "    if words is not None and parameters",
        "    if words is None and parameters",
        (f"{PAGE}::test_deleting_everything_must_be_typed",),
    ),
    Mutant(
        "control-another-site-pauses",
        "outbox/admin/web/control.py",
        "    csrf.check(request, form)\n",
        "",
        (f"{PAGE}::test_only_operators_control_and_no_other_site_does",),
    ),
    Mutant(
        "control-an-event-with-a-lease-is-tried-now",
        "outbox/storage/sql/operations.py",
        "WHERE id = ? AND next_attempt_at > {now} AND next_attempt_at < {latest} AND lease_id IS NULL AND progress",
        "WHERE id = ? AND next_attempt_at > {now} AND next_attempt_at < {latest} AND progress",
        ("tests/operations/test_bulk_actions.py::TestRetryingNow::test_what_a_worker_has_is_not_tried_now",),
    ),
    Mutant(
        "control-a-failing-batch-writes-what-was-erased",
        "outbox/storage/sql/attempts.py",
        "    SELECT 1 FROM {event_table} AS event WHERE event.id = value ->> 'event_id' AND event.erased_at IS NULL",
        "    SELECT 1 FROM {event_table} AS event WHERE event.id = value ->> 'event_id'",
        (
            "tests/delivery/test_attempts.py::test_none_is_added_to_an_event_that_was_erased_or_deleted_meanwhile[sqlite]",
        ),
    ),
    Mutant(
        "control-a-pause-counts-towards-the-maximum-age",
        "outbox/delivery/retry.py",
        "seconds=entry.asked_seconds + paused)",
        "seconds=entry.asked_seconds)",
        (f"{CONTROLS}::TestTheMaximumAge::test_it_does_not_count_the_time_of_a_pause",),
    ),
    Mutant(
        "control-a-pause-before-the-first-attempt-is-counted",
        "outbox/delivery/retry.py",
        "(now, paused_seconds) if entry.since is None",
        "(now, 0.0) if entry.since is None",
        (f"{CONTROLS}::TestTheMaximumAge::test_it_counts_a_pause_before_the_first_attempt_for_nothing",),
    ),
    Mutant(
        "control-a-batch-that-has-begun-ignores-a-pause",
        SHARE,
        "            if admission.is_withdrawn or self._controlled.is_paused:\n"
        "                self._put_off.not_admitted(self",
        "            if admission.is_withdrawn:\n                self._put_off.not_admitted(self",
        (f"{PAUSED}::test_it_is_paused_in_the_middle_of_a_batch",),
    ),
    Mutant(
        "control-events-are-claimed-while-everything-is-paused",
        "outbox/delivery/deliver.py",
        "    if context.audiences.is_everything_paused():",
        "    if False:",
        (f"{CONTROLS}::TestEverythingPaused::test_nothing_is_claimed_and_all_goes_on_afterwards",),
    ),
    Mutant(
        "control-what-is-put-off-while-resuming-waits-for-an-hour",
        "outbox/delivery/settle.py",
        "    if ids:\n        context.dialect.run(context.dialect.statements.unpause",
        "    if not ids:\n        context.dialect.run(context.dialect.statements.unpause",
        (f"{PAUSED}::test_events_that_are_put_off_after_the_resuming_has_looked_are_due_at_once",),
    ),
    Mutant(
        "control-a-change-is-noticed-by-no-claim",
        "outbox/operations/controls.py",
        "        dialect.run(dialect.statements.destinations_changed)\n",
        "",
        (f"{PAUSED}::test_a_process_that_runs_obeys_with_its_next_claim_and_without_a_query_for_each",),
    ),
    Mutant(
        "control-what-waits-for-a-pause-is-not-tried-when-it-is-resumed",
        "outbox/delivery/plan.py",
        "            progress[name] = entry.due_sooner()",
        "            progress[name] = entry",
        (f"{PAUSED}::test_it_gets_nothing_until_it_is_resumed_and_the_others_get_theirs",),
    ),
    Mutant(
        "control-a-pause-lasts-while-the-event-is-due-elsewhere",
        "outbox/delivery/plan.py",
        "if is_early or _has_ended(controls, name, entry, now):",
        "if is_early:",
        (f"{PAUSED}::test_it_gets_its_events_after_the_pause_though_they_are_due_elsewhere_at_the_same_time",),
    ),
    Mutant(
        "control-a-breaker-that-closes-leaves-events-waiting",
        SHARE,
        "            make_due_again(self._context)\n",
        "",
        (f"{CONTROLS}::TestADestinationThatIsBack::test_a_breaker_that_closes_by_itself_makes_due_what_waits",),
        also=(("outbox/delivery/deliver.py", "                make_due_again(context)\n", ""),),
    ),
    Mutant(
        "control-an-operator-does-not-close-the-breaker",
        "outbox/throttle/destination_throttle.py",
        "        if is_news and self._shared_limiter.is_open:",
        "        if False:",
        (
            f"{CONTROLS}::TestADestinationThatIsBack::test_its_breaker_closes_and_what_waits_is_due_a_little_after_one_another",
        ),
        also=(
            (
                "outbox/operations/controls.py",
                "    close_breaker(name)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "control-a-throttle-is-not-applied",
        "outbox/throttle/limiters.py",
        "        lowest = rate_limit.lowest(self._declared.per_second, per_second)",
        "        lowest = self._declared.per_second",
        (f"{CONTROLS}::TestAThrottledDestination::test_it_gets_so_many_a_second_and_what_waits_is_due_when_that_ends",),
    ),
    Mutant(
        "control-an-erased-event-is-replayed",
        "outbox/storage/sql/operations.py",
        "WHERE {ids} AND {is_delivered} AND erased_at IS NULL",
        "WHERE {ids} AND {is_delivered}",
        ("tests/operations/test_erase.py::TestWhatWasErased::test_is_neither_retried_nor_replayed[sqlite]",),
    ),
    Mutant(
        "control-errors-are-not-erased",
        "outbox/storage/progress.py",
        'for key, value in entry.items() if key != "error"',
        "for key, value in entry.items() if key",
        ("tests/operations/test_erase.py::TestWhatIsErased::test_nothing_of_it_is_left_in_any_table[sqlite]",),
    ),
    Mutant(
        "control-what-a-worker-delivers-is-dropped",
        "outbox/storage/sql/erasure.py",
        "({has_ended} OR (? AND (lease_until IS NULL OR lease_until <= {now})))",
        "({has_ended} OR ?)",
        ("tests/operations/test_erase.py::TestWhatHasNotEnded::test_what_a_worker_claims_meanwhile_is_left[sqlite]",),
    ),
    Mutant(
        "control-the-audit-log-repeats-the-subject",
        "outbox/operations/erase.py",
        "audited=hidden(filter)",
        "audited=filter.to_json()",
        ("tests/operations/test_erase.py::TestTheAuditEntry::test_says_how_many_and_which_and_not_about_whom[sqlite]",),
    ),
]
