"""What is broken, one at a time: each line is one that a promise rests on."""

from tests.mutants.mutant import Mutant

SQL = "outbox/sql.py"
MODEL = "tests/model/test_life.py"
FENCE = "tests/invariants/test_i3_fence.py"
CLAIM = "tests/delivery/test_claim.py"
FRONT = "tests/delivery/test_front.py"
ACTIONS = "tests/admin/test_actions.py"
DRAINS = "tests/delivery/test_drain_limit.py"
POLLER = "tests/dramatiq/test_fallback_poller.py"

MUTANTS = [
    # A forgotten configure(database=db) is told of
    Mutant(
        "an-emit-outside-a-transaction-is-silent",
        "outbox/emit.py",
        "if (box.warned_of_no_transaction and not required) or box.dialect.in_transaction:",
        "if not required or box.dialect.in_transaction:",
        ("tests/test_transactions.py::test_a_transaction_of_another_database_object_is_told_of",),
    ),
    # emit: what it reads of a duplicate, and how it ends where there is no row to be seen
    Mutant(
        "a-duplicate-is-read-whole",
        "outbox/emit.py",
        '[] if on_duplicate == "ignore" else [event.id]',
        "[]",
        ("tests/test_permissions.py::test_an_application_that_may_not_read_events_emits_and_names_duplicates",),
    ),
    Mutant(
        "a-key-that-is-free-again-is-not-tried-again",
        "outbox/emit.py",
        "INSERT_TRIES = 3",
        "INSERT_TRIES = 0",
        ("tests/test_emit.py::test_a_duplicate_that_vanishes_in_between_is_inserted_again",),
    ),
    # The tables' names: two outboxes share a database and nothing else
    Mutant(
        "queries-read-the-tables-of-another-outbox",
        "outbox/database.py",
        "        with tables_in_use(self.tables):\n            return list(",
        "        with tables_in_use(Tables()):\n            return list(",
        ("tests/test_tables.py::test_two_outboxes_share_a_schema_and_nothing_else",),
    ),
    Mutant(
        "index-without-a-prefix",
        "outbox/tables.py",
        '"index_prefix": f"idx_{self.prefix}"',
        '"index_prefix": "idx_outbox_"',
        ("tests/test_tables.py::test_two_outboxes_share_a_schema_and_nothing_else",),
    ),
    # The fence: only the holder of the current lease is heard
    Mutant(
        "fence-of-delivered",
        SQL,
        "{audience_of_type})\nWHERE {ids} AND lease_id = ?",
        "{audience_of_type})\nWHERE {ids} AND ? IS NOT NULL",
        (FENCE, "tests/delivery/test_settle.py::TestTheFence", MODEL),
    ),
    Mutant(
        "fence-of-settled",
        SQL,
        "WHERE id = ? AND lease_id = ?",
        "WHERE id = ? AND ? IS NOT NULL",
        (FENCE, "tests/delivery/test_settle.py::TestTheFence", MODEL),
    ),
    Mutant(
        "fence-of-released",
        SQL,
        "attempts - 1, lease_id = NULL, lease_until = NULL, updated_at = {now}\nWHERE {ids} AND lease_id = ?",
        "attempts - 1, lease_id = NULL, lease_until = NULL, updated_at = {now}\nWHERE {ids} AND ? IS NOT NULL",
        (FENCE, "tests/delivery/test_settle.py::TestTheFence::test_a_late_give_back_is_a_counted_no_op", MODEL),
    ),
    Mutant(
        "fence-of-renewed",
        SQL,
        "WHERE {ids} AND {leases} {skip_locked}",
        "WHERE {ids} AND ({leases} OR true) {skip_locked}",
        (FENCE, "tests/delivery/test_lease.py::TestRenewal", MODEL),
    ),
    Mutant(
        "fenced-but-not-counted",
        "outbox/delivery/settle.py",
        "    fenced = answered - len(delivered) - sum(others.values())",
        "    fenced = 0",
        (FENCE, MODEL),
    ),
    # The lease: what another has is left alone, until it has run out
    Mutant(
        "lease-filter-on-postgres",
        SQL,
        "(lease_until IS NULL OR (%s AND lease_until <= {now}))",
        "(lease_until IS NULL OR %s)",
        (f"{CLAIM}::TestTheLease", MODEL),
    ),
    Mutant(
        "lease-filter-on-sqlite",
        SQL,
        "(lease_until IS NULL OR (? AND lease_until <= {now}))",
        "(lease_until IS NULL OR ?)",
        (f"{CLAIM}::TestTheLease", MODEL),
    ),
    Mutant(
        "lease-never-runs-out-on-postgres",
        SQL,
        "(%s AND lease_until <= {now})",
        "(%s AND lease_until <= {now} AND false)",
        (f"{CLAIM}::TestTheLease", "tests/invariants/test_i2_ends.py", MODEL),
    ),
    Mutant(
        "lease-never-renewed",
        "outbox/delivery/lease.py",
        "            self.renew([batch for batch in ripe",
        "            self.renew([batch for batch in ripe[:0]",
        ("tests/delivery/test_lease.py::TestRenewal::test_a_long_handler_keeps_its_lease_and_succeeds_once",),
    ),
    Mutant(
        "lost-lease-begins-all-the-same",
        "outbox/delivery/batch.py",
        "if self._closed or number in self._lost or time.monotonic() >= self.valid_until:",
        "if self._closed:",
        (f"{FENCE}::test_a_worker_that_slept_through_its_lease_begins_nothing", MODEL),
    ),
    Mutant(
        "due-filter-on-postgres",
        SQL,
        "WHERE next_attempt_at >= %s AND next_attempt_at <= {now}",
        "WHERE next_attempt_at >= %s",
        (f"{CLAIM}::TestWhatIsDue", MODEL),
    ),
    Mutant(
        "what-lies-before-the-front-is-forgotten",
        "outbox/delivery/claim.py",
        "if len(rows) >= size or (rows and rows[0][-1]):",
        "if True:",
        (f"{FRONT}::TestClaims",),
    ),
    Mutant(
        "full-claims-never-look-before-the-front",
        "outbox/delivery/front.py",
        "if self._reached is not None and now < self._look_at[suspects]:",
        "if self._reached is not None:",
        (f"{FRONT}::TestClaims",),
    ),
    # Suspects: alone in their batch, alone in their process, and not for ever
    Mutant(
        "suspects-with-others-on-postgres",
        SQL,
        "THEN ARRAY(SELECT id FROM due WHERE suspect ORDER BY next_attempt_at LIMIT 1)",
        "THEN ARRAY(SELECT id FROM due)",
        (f"{CLAIM}::TestSuspects", MODEL),
    ),
    Mutant(
        "suspects-with-others-on-sqlite",
        "outbox/database.py",
        "chosen = suspected[:1] if suspected else [id for id, _ in due]",
        "chosen = [id for id, _ in due]",
        (f"{CLAIM}::TestSuspects", MODEL),
    ),
    Mutant(
        "suspects-for-ever",
        "outbox/delivery/plan.py",
        "if event.suspect and event.claims > max(event.max_attempts, 2):",
        "if False:",
        ("tests/invariants/test_i2_ends.py::TestAnEventThatKillsItsWorkers", MODEL),
    ),
    Mutant(
        "solitude-of-suspects",
        "outbox/delivery/solitude.py",
        "            if self._suspect:\n                self._turned_away = True\n                return None\n",
        "",
        ("tests/delivery/test_solitude.py::TestWhileASuspectIsInFlight",),
    ),
    Mutant(
        "solitude-from-others",
        "outbox/delivery/solitude.py",
        "            look = not self._company(place) or time",
        "            look = True or time",
        ("tests/delivery/test_solitude.py::TestWhileAnotherBatchIsInFlight::test_only_others_are_claimed",),
    ),
    # Side by side
    Mutant(
        "skip-locked-in-the-claim",
        SQL,
        "    LIMIT %s\n    FOR UPDATE SKIP LOCKED\n)",
        "    LIMIT %s\n    FOR UPDATE\n)",
        (f"{CLAIM}::TestOnPostgres::test_rows_that_another_transaction_has_locked_are_skipped_not_waited_for",),
    ),
    Mutant(
        "skip-locked-elsewhere",
        SQL,
        '"skip_locked": "FOR UPDATE SKIP LOCKED",',
        '"skip_locked": "FOR UPDATE",',
        ("tests/invariants/test_hard_cases.py::TestALockedRow",),
    ),
    Mutant(
        "flag-down-after-the-look",
        "outbox/dramatiq/wakeup.py",
        """    try:
        flag.take_down()
    except Exception as error:
        logger.warning("the wake-up flag could not be taken down, it will expire: %s", error)
    look()
""",
        """    look()
    try:
        flag.take_down()
    except Exception as error:
        logger.warning("the wake-up flag could not be taken down, it will expire: %s", error)
""",
        ("tests/jobs/test_wakeup.py::TestInEveryOrder",),
    ),
    Mutant(
        "flag-left-up-when-sending-fails",
        "outbox/dramatiq/wakeup.py",
        "        with contextlib.suppress(Exception):\n            flag.take_down()\n        raise",
        "        raise",
        ("tests/jobs/test_wakeup.py::TestInEveryOrder",),
    ),
    Mutant(
        "suppressed-by-other-actors-messages",
        "outbox/dramatiq/flag.py",
        "if unanswered >= tonumber(ARGV[1]) and redis.call",
        "if redis.call",
        ("tests/jobs/test_wakeup.py::TestMessages",),
    ),
    Mutant(
        "flag-that-nobody-takes-down",
        "outbox/dramatiq/wakeup.py",
        "    return Interval()\n",
        "    return LocalFlag()\n",
        ("tests/jobs/test_wakeup.py::TestWithoutAFlag",),
    ),
    # Who delivers
    Mutant(
        "emitters-declare-the-actors",
        "outbox/dramatiq/wakeup.py",
        "        ring_on(broker, box.settings.queue)\n",
        "        __import__('outbox.dramatiq.actors', fromlist=['']).declare_actors(broker, box.settings)\n"
        "        ring_on(broker, box.settings.queue)\n",
        ("tests/jobs/test_own_broker.py::TestAWorkerThatOnlyEmits",),
    ),
    Mutant(
        "everybody-is-a-worker",
        "outbox/dramatiq/actors.py",
        "    look = box.drain if _is_worker(box) else _do_nothing\n",
        "    look = box.drain\n",
        ("tests/jobs/test_own_broker.py::TestAWorkerThatOnlyEmits",),
    ),
    Mutant(
        "workers-without-handlers",
        "outbox/core.py",
        "        self.check_registered(modules)\n        self.is_worker = True",
        "        self.is_worker = True",
        ("tests/jobs/test_readiness.py::test_without_handlers",),
    ),
    Mutant(
        "delivered-to-nobody-by-a-worker",
        "outbox/delivery/plan.py",
        "    if box.registry.is_empty and not box.is_worker:",
        "    if box.registry.is_empty:",
        ("tests/delivery/test_deliver.py::TestNothingRegistered",),
    ),
    # Emit, and the inbox
    Mutant(
        "emit-through-another-connection",
        "outbox/emit.py",
        "    stored = _store(box, draft, on_duplicate)\n    box.bell",
        "    stored = __import__('tests.crowd', fromlist=['']).elsewhere("
        "box.database, lambda: _store(box, draft, on_duplicate))\n    box.bell",
        ("tests/invariants/test_i1_committed.py",),
    ),
    Mutant(
        "inbox-insert",
        "outbox/inbox.py",
        "            first = self._insert(parameters)",
        "            first = True",
        (
            "tests/inbox/test_once.py::TestWhoHasDealtWithIt",
            "tests/inbox/test_races.py::test_twenty_threads_with_one_message_have_one_effect",
        ),
    ),
    Mutant(
        "inbox-without-its-transaction",
        "outbox/inbox.py",
        "        with self.dialect.connection(), self.dialect.all_or_nothing():",
        "        with self.dialect.connection():",
        ("tests/inbox/test_transactions.py",),
    ),
    # What operators do: only to what is still in the state that it is for
    Mutant(
        "retry-of-what-has-not-failed",
        SQL,
        "WHERE id = ? AND {failed}",
        "WHERE id = ?",
        ("tests/admin/test_states.py::test_retrying_touches_only_what_has_failed",),
    ),
    Mutant(
        "retry-of-anything",
        SQL,
        "WHERE id = ? AND {failed}",
        "WHERE id = ?",
        ("tests/admin/test_retrying.py::test_only_failed_ones_are_touched", MODEL),
        also=(("outbox/admin/actions.py", 'Action("retry", _is_failed,', 'Action("retry", list,'),),
    ),
    Mutant(
        "choice-of-what-is-retried",
        "outbox/admin/actions.py",
        'RETRY = Action("retry", _is_failed, _retry, rings=True)',
        'RETRY = Action("retry", list, _retry, rings=True)',
        ("tests/admin/test_states.py::test_what_is_counted_beforehand_is_in_that_state",),
    ),
    Mutant(
        "failing-of-what-is-being-delivered",
        SQL,
        "WHERE {ids} AND next_attempt_at IS NOT NULL AND (lease_until IS NULL OR lease_until <= {now})",
        "WHERE {ids} AND next_attempt_at IS NOT NULL",
        (f"{ACTIONS}::TestFailing::test_leaves_alone_what_a_worker_is_delivering", MODEL),
    ),
    Mutant(
        "failing-of-what-has-ended",
        SQL,
        "WHERE {ids} AND next_attempt_at IS NOT NULL AND (lease_until",
        "WHERE {ids} AND (lease_until",
        ("tests/admin/test_states.py::test_failing_touches_only_what_waits",),
    ),
    Mutant(
        "deleting-of-what-has-not-ended",
        SQL,
        '"DELETE FROM {event_table} WHERE {ids} AND next_attempt_at IS NULL"',
        '"DELETE FROM {event_table} WHERE {ids}"',
        ("tests/admin/test_states.py::test_deleting_touches_only_what_has_ended",),
    ),
    Mutant(
        "replay-of-what-was-not-delivered",
        SQL,
        "WHERE {ids} AND delivered_at IS NOT NULL",
        "WHERE {ids}",
        ("tests/admin/test_states.py::test_replaying_touches_only_what_was_delivered",),
    ),
    Mutant(
        "clean-up-of-what-has-not-ended",
        SQL,
        'ENDED = "next_attempt_at IS NULL AND COALESCE',
        'ENDED = "COALESCE',
        ("tests/test_retention.py", MODEL),
    ),
    Mutant(
        "audit-outside-the-transaction",
        "outbox/admin/actions.py",
        """                hit = action.run(box, rows) if rows else 0
                entry.add(hit)
                if action.rings and hit:
                    box.bell.ring_after_commit(box.dialect)
            done += hit
""",
        """                hit = action.run(box, rows) if rows else 0
                if action.rings and hit:
                    box.bell.ring_after_commit(box.dialect)
            entry.add(hit)
            done += hit
""",
        ("tests/admin/test_states.py::test_a_change_that_can_not_be_written_down_is_not_made",),
    ),
    # Safety
    Mutant(
        "signature-comparison",
        "outbox/webhooks.py",
        "            right |= hmac.compare_digest(expected, signature)",
        "            right = True",
        ("tests/destinations/test_verify.py::TestRefused::test_another_secret",),
    ),
    Mutant(
        "signature-compared-until-one-is-right",
        "outbox/webhooks.py",
        "            right |= hmac.compare_digest(expected, signature)",
        "            if hmac.compare_digest(expected, signature):\n                return True",
        ("tests/destinations/test_verify.py::TestDiscretion",),
    ),
    Mutant(
        "signature-of-any-age",
        "outbox/webhooks.py",
        "    if abs(age) > tolerance:",
        "    if False:",
        ("tests/destinations/test_verify.py::TestRefused::test_an_old_one_and_one_from_the_future",),
    ),
    Mutant(
        "forged-token",
        "outbox/admin/web/forgery.py",
        'compare_digest(given.encode(errors="replace"), expected.encode())',
        "True",
        ("tests/web/test_forgery.py::test_a_wrong_token_changes_nothing",),
    ),
    Mutant(
        "forged-from-another-page",
        "outbox/admin/web/forgery.py",
        "    if not _is_from_here(request):",
        "    if False:",
        ("tests/web/test_forgery.py::test_a_browser_that_says_another_page_asked_is_believed",),
    ),
    Mutant(
        "password",
        "outbox/admin/web/access.py",
        "return self._user if compare_digest(found, self._expected) else None",
        "return self._user",
        ("tests/web/test_access.py::test_anything_else_does_not",),
    ),
    Mutant(
        "masking",
        "outbox/admin/masking.py",
        "MASKED if self.hides(str(key)) else ",
        "",
        ("tests/web/test_masking.py",),
    ),
    Mutant(
        "masking-of-the-page",
        "outbox/admin/web/pages.py",
        "payload=dashboard.masking.masked(found.payload),",
        "payload=found.payload,",
        ("tests/web/test_pages.py", "tests/test_security.py"),
    ),
    Mutant(
        "private-addresses",
        "outbox/transport/network.py",
        "        if self._public_only:\n            check_public(host, addresses)\n",
        "",
        ("tests/destinations/test_addresses.py::test_no_way_of_writing_it_leads_to_this_host",),
    ),
    Mutant(
        "one-private-address-of-several",
        "outbox/transport/address.py",
        "    for address in addresses:\n        if not is_public",
        "    for address in addresses[:1]:\n        if not is_public",
        ("tests/destinations/test_addresses.py::test_one_wrong_address_is_enough_to_refuse_a_name",),
    ),
    Mutant(
        "secrets-in-errors",
        "outbox/destinations/judge.py",
        'line = " ".join(self._confidential.hide(text).split())',
        'line = " ".join(text.split())',
        ("tests/destinations/test_outcomes.py", "tests/fuzz/test_answers.py", "tests/test_security.py"),
    ),
    # What is shared by all workers
    Mutant(
        "probe-one-at-a-time",
        "outbox/gates/state.py",
        "    probing = replace(state, open_until=now + request.hold_seconds)",
        "    probing = state",
        ("tests/gates/test_state.py::TestOpen::test_nobody_gets_in_but_one_probe_at_a_time",),
    ),
    Mutant(
        "probe-of-one-event",
        "outbox/gates/state.py",
        "    return probing, Answer(1, at_once=1, probe=True",
        "    return probing, Answer(request.events, at_once=1, probe=True",
        ("tests/gates/test_state.py",),
    ),
    Mutant(
        "counts-lost-with-a-commit-that-failed",
        "outbox/publish.py",
        "        if self._unsure is not None:\n            self._send",
        "        if False:\n            self._send",
        ("tests/test_publish.py::TestCounts::test_that_could_not_be_written_come_along_the_next_time",),
    ),
    Mutant(
        "counts-doubled-by-a-commit-unheard-of",
        SQL,
        "WHERE COALESCE({parcel}, 0) < ?",
        "WHERE COALESCE({parcel}, 0) < 1000000 OR ? IS NOT NULL",
        ("tests/test_publish.py::TestCounts::test_whose_commit_nobody_heard_of_are_counted_once",),
    ),
    Mutant(
        "give-back-costs-an-attempt",
        SQL,
        "SET status = 'pending', attempts = attempts - 1, lease_id",
        "SET status = 'pending', lease_id",
        ("tests/delivery/test_settle.py::TestGivingBack", MODEL),
    ),
    # Without the broker and without the scheduler: workers look by themselves, and no wake-up is forgotten
    Mutant(
        "refused-wake-up-forgotten",
        "outbox/delivery/drain_limit.py",
        "                self._asked = True",
        "                self._asked = False",
        (f"{DRAINS}::TestSlots", f"{DRAINS}::TestDrains"),
    ),
    Mutant(
        "drain-ends-though-a-wake-up-was-refused",
        "outbox/delivery/__init__.py",
        "(batch is None or not batch.full) and slot.release()",
        "batch is None or not batch.full",
        (f"{DRAINS}::TestDrains",),
    ),
    Mutant(
        "drains-without-a-limit",
        "outbox/delivery/drain_limit.py",
        "            if self._running >= self._most:",
        "            if self._running < 0:",
        (f"{DRAINS}::TestSlots", f"{DRAINS}::TestDrains"),
    ),
    Mutant(
        "no-claim-without-a-broker",
        "outbox/dramatiq/fallback_poller.py",
        "        return error is not None or self._has_missed_sweeps()",
        "        return error is None and self._has_missed_sweeps()",
        (f"{POLLER}::TestWithoutABroker",),
    ),
    Mutant(
        "no-claim-without-sweeps",
        "outbox/dramatiq/fallback_poller.py",
        "        return error is not None or self._has_missed_sweeps()",
        "        return error is not None",
        (f"{POLLER}::TestWithABroker",),
    ),
    Mutant(
        "a-fleet-claims-as-if-each-were-alone",
        "outbox/dramatiq/fallback_poller.py",
        "idle_seconds >= patience * self._live_workers()",
        "idle_seconds >= patience",
        (f"{POLLER}::TestWithABroker",),
    ),
    Mutant(
        "a-broker-that-hangs-counts-as-reached",
        "outbox/dramatiq/broker_probe.py",
        '            return f"no answer within {PROBE_SECONDS:g} s"',
        "            return None",
        ("tests/dramatiq/test_broker_probe.py",),
    ),
    Mutant(
        "a-worker-without-a-poller",
        "outbox/dramatiq/middleware.py",
        "        self._poller.start()",
        "        self._poller.stop()",
        ("tests/jobs/test_middleware.py::test_an_outbox_worker_has_a_fallback_poller_for_as_long_as_it_runs",),
    ),
]
