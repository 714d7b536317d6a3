"""Mutants of what handlers and those who write them rely on: attempts, hooks, typed events."""

from tests.mutants.mutant import Mutant

BACKOFF = "tests/destinations/test_backoff.py"
HOOKS = "tests/delivery/test_failure_hooks.py"
TYPES = "tests/events/test_event_types.py"
VERSIONS = f"{TYPES}::TestVersions"
POISON = "tests/invariants/test_i6_isolation.py::TestAPoisonEvent"
EVENT_TYPES = "outbox/events/event_types.py"

HANDLERS = [
    Mutant(
        "a-death-fails-an-event-that-its-handler-may-try-again",
        "outbox/delivery/plan.py",
        "claims = event.claims if ended < event.max_attempts else event.claims - ended",
        "claims = event.claims",
        (f"{BACKOFF}::TestMaxAttempts::test_a_worker_that_dies_after_more_attempts_than_the_events_costs_one_of_them",),
    ),
    Mutant(
        "an-event-that-its-handler-may-try-again-kills-workers-for-ever",
        "outbox/delivery/plan.py",
        "claims = event.claims if ended < event.max_attempts else event.claims - ended",
        "claims = event.claims if ended < event.max_attempts else 0",
        (f"{BACKOFF}::TestMaxAttempts::test_an_event_that_kills_its_workers_fails_after_its_own_number_of_deaths",),
    ),
    Mutant(
        "a-session-that-ended-fails-the-neighbours",
        "outbox/storage/postgres.py",
        "return bool(self.database.connection().closed)",
        "return False",
        (f"{POISON}::test_one_that_ends_its_database_session_costs_its_neighbours_nothing",),
    ),
    Mutant(
        "handlers-are-called-without-a-database",
        "outbox/delivery/share_connection.py",
        "        reason = connect(self._context)\n        self.must",
        "        reason = None\n        self.must",
        (f"{POISON}::test_a_database_that_is_gone_after_a_call_costs_the_next_events_no_attempt",),
    ),
    Mutant(
        "a-handlers-attempts-are-those-of-the-event",
        "outbox/delivery/put_off.py",
        "limit = delivery.event.max_attempts if self._max_attempts is None else self._max_attempts",
        "limit = delivery.event.max_attempts",
        (f"{BACKOFF}::TestMaxAttempts",),
    ),
    Mutant(
        "a-success-does-not-end-a-row-of-failures",
        "outbox/delivery/share.py",
        "nothing_else_to_do and admission.was_reached:",
        "nothing_else_to_do:",
        ("tests/delivery/test_slow_destinations.py::TestWhileTheCircuitBreakerIsOpen",),
    ),
    Mutant(
        "a-success-is-no-probe",
        "outbox/delivery/share.py",
        "            and not admission.decision.probe\n",
        "",
        ("tests/delivery/test_slow_destinations.py", "tests/delivery/test_controls.py"),
    ),
    Mutant(
        "a-handlers-attempts-are-those-of-all-handlers",
        "outbox/delivery/share.py",
        "is_shared = len(delivery.awaited) > 1 or self._max_attempts is not None",
        "is_shared = False",
        (f"{BACKOFF}::TestMaxAttempts::test_leaves_other_handlers_to_the_event",),
    ),
    Mutant(
        "a-hook-that-raises-ends-the-others",
        "outbox/delivery/failure_hooks.py",
        "                except CALL_ERRORS as error:",
        "                except ZeroDivisionError as error:",
        (f"{HOOKS}::TestAHookHarmsNothing::test_if_it_raises",),
    ),
    Mutant(
        "a-hook-runs-in-the-thread-that-delivers",
        "outbox/delivery/failure_hooks.py",
        "            if not self._runs_in_background:",
        "            if True:",
        # It would wait for ever with a hook that hangs.
        (f"{HOOKS}::TestTheQueue::test_drops_what_is_too_much_and_says_so_once[sqlite]",),
    ),
    Mutant(
        "a-hook-is-told-of-a-failure-at-every-later-attempt",
        "outbox/delivery/failure_hooks.py",
        "is_final = entry.state == FAILED and before.get(name, NEW).state != FAILED",
        "is_final = entry.state == FAILED",
        (f"{HOOKS}::TestWhatAHookIsTold::test_each_destination_once_by_itself",),
    ),
    Mutant(
        "exceptions-are-kept-after-the-report",
        "outbox/delivery/settle.py",
        "        delivery.exceptions = None\n",
        "        pass\n",
        (f"{HOOKS}::TestAHookHarmsNothing::test_what_was_raised_is_forgotten_once_it_was_reported",),
    ),
    Mutant(
        "a-newer-event-costs-an-attempt",
        "outbox/delivery/retry.py",
        "    if isinstance(outcome, NewerEvent):",
        "    if False:",
        (f"{VERSIONS}::test_a_newer_one_waits_for_a_newer_worker_at_no_cost",),
    ),
    Mutant(
        "events-that-can-not-be-read-open-the-circuit-breaker",
        "outbox/delivery/share.py",
        "        if was_not_called(outcome):",
        "        if False:",
        (f"{VERSIONS}::test_a_newer_one_waits_for_a_newer_worker_at_no_cost",),
    ),
    Mutant(
        "a-handler-is-called-with-what-can-not-be-read",
        "outbox/destinations/handler.py",
        "            _ = event.data\n",
        "            pass\n",
        (f"{VERSIONS}::test_an_event_that_can_not_be_read_costs_its_handler_an_attempt_and_names_the_field",),
    ),
    Mutant(
        "a-gap-between-upcasters-is-accepted",
        EVENT_TYPES,
        "        if missing:\n",
        "        if False:\n",
        (f"{TYPES}::TestDeclarations::test_a_gap_in_the_chain_is_refused_when_a_handler_is_registered",),
    ),
    Mutant(
        "two-classes-of-one-version-are-accepted",
        EVENT_TYPES,
        "if other is not None and (path_of(other.cls) != path_of(new.cls) or other.name != new.name):",
        "if other is not None and other.name != new.name:",
        (f"{TYPES}::TestDeclarations::test_duplicates_are_refused_with_both_places",),
    ),
    Mutant(
        "upcasters-are-skipped",
        EVENT_TYPES,
        "range(version, latest.version)",
        "range(version + 1, latest.version)",
        (f"{VERSIONS}::test_upcasters_run_in_a_chain_on_a_copy",),
    ),
    Mutant(
        "an-error-of-reading-quotes-the-value",
        "outbox/events/typed_payload.py",
        '_QUOTED_VALUE.sub("is none of the values that are allowed", problem)',
        "problem",
        (f"{TYPES}::test_the_error_of_an_enum_has_no_value",),
    ),
]
