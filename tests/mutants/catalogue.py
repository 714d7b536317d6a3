"""What is broken, one at a time: each line is one that a promise rests on."""

from tests.mutants.buses import BUSES
from tests.mutants.control import CONTROL
from tests.mutants.dashboard import DASHBOARD
from tests.mutants.handlers import HANDLERS
from tests.mutants.leaks import LEAKS
from tests.mutants.mutant import Mutant
from tests.mutants.proofs import PROOFS
from tests.mutants.rabbitmq import RABBITMQ
from tests.mutants.several import SEVERAL_OUTBOXES
from tests.mutants.truth import TRUTH

DELIVERY_SQL = "outbox/storage/sql/delivery.py"
OPERATIONS_SQL = "outbox/storage/sql/operations.py"
MODEL = "tests/model/test_life.py"
FENCE = "tests/invariants/test_i3_fence.py"
CLAIM = "tests/delivery/test_claim.py"
OWN_WORKER = "tests/dramatiq/test_own_broker.py::TestAWorkerThatOnlyEmits"
SCAN_POSITION = "tests/delivery/test_scan_position.py"
ACTIONS = "tests/operations/test_actions.py"
QUEUE_OF_ITS_OWN = "tests/dramatiq/test_own_broker.py::TestAQueueThatAModuleConfigures"
ENCODING = "tests/storage/test_database_encoding.py"
AUDIENCE = "tests/invariants/test_i8_audience.py"
RECORD = "tests/destinations/test_recorder.py"
RENAMES = "tests/invariants/test_i8_renames.py"
DRAINS = "tests/delivery/test_drain_limit.py"
DRAIN_THREAD = "tests/delivery/test_drain_thread.py"
LISTENER = "tests/dramatiq/test_wakeup_listener.py"
POLLER = "tests/dramatiq/test_fallback_poller.py"
JOB_PAGES = "tests/admin/web/test_jobs.py"
PERIODIC_SQL = "outbox/storage/sql/periodic.py"
STORE_RUNS = "outbox/scheduler/store_runs.py"
PERIODIC = "tests/scheduler/test_store_runs.py"
COMPRESSED_TIME = "tests/scheduler/test_compressed_time.py::test_every_scheduled_time_of_hours_is_stored_once"

SEND = "tests/dramatiq/test_send.py"
TRANSACTION_PER_MESSAGE = "tests/dramatiq/test_transaction_per_message.py"
TRANSACTIONAL = "tests/dramatiq/test_transactional.py"
STRAIGHT_THROUGH = f"{TRANSACTIONAL}::TestStraightThrough"
JOB_BROKERS = "tests/dramatiq/test_job_brokers.py"
JOB_MODEL = "tests/model/test_jobs.py"

ORDER = "tests/delivery/test_ordering.py"
ORDER_SQL = "outbox/storage/sql/ordering.py"
ORDER_MODEL = "tests/model/test_order.py"
INTERLEAVINGS = "tests/invariants/test_i5_interleavings.py"
I5 = "tests/invariants/test_i5_order.py"

ASYNC_HANDLER = "tests/destinations/test_async_handler.py"
ASYNC_EMIT = "tests/events/test_async_emit.py"

MUTANTS = [
    # Asynchronous databases
    Mutant(
        "async-a-task-adds-to-the-callback-of-another",
        "outbox/notify/after_commit.py",
        "            for waiting in database._state.commit_callbacks:",
        "            for waiting in sum((each.commit_callbacks for each in database._state._states.values()), []):",
        (f"{ASYNC_EMIT}::TestAfterCommit",),
        also=(("outbox/notify/after_commit.py", " and waiting.transaction is transaction:", ":"),),
    ),
    Mutant(
        "async-blocking-code-is-not-told-to-await",
        "outbox/events/emit.py",
        "        self._dialect.check_caller(caller)\n",
        "",
        (f"{ASYNC_EMIT}::TestTheLoop::test_blocking_code_is_told_to_await",),
    ),
    # Async handlers
    Mutant(
        "async-a-handlers-exit-ends-the-loop",
        "outbox/destinations/async_handler.py",
        "        except BaseException as error:\n            self.error = error",
        "        except Exception as error:\n            self.error = error",
        (f"{ASYNC_HANDLER}::TestOutcomes",),
    ),
    Mutant(
        "async-the-deadline-cancels-nothing",
        "outbox/destinations/async_handler.py",
        "            call.is_late = True\n            call.cancel()",
        "            call.is_late = True",
        (f"{ASYNC_HANDLER}::TestDeadline::test_a_call_that_takes_too_long_is_cancelled_and_its_neighbours_are_not",),
    ),
    Mutant(
        "async-an-interrupt-leaves-the-calls-running",
        "outbox/destinations/async_handler.py",
        "        finally:\n            calls.cancel_all()\n\n    def call(",
        "        finally:\n            pass\n\n    def call(",
        (f"{ASYNC_HANDLER}::TestDeadline::test_an_interrupt_of_the_thread_cancels_its_calls",),
    ),
    Mutant(
        "async-the-inbox-claims-on-another-connection",
        "outbox/inbox/inbox.py",
        "        if self._is_apart:",
        "        if False:",
        (f"{ASYNC_EMIT}::TestTheBlockingDatabaseBesideIt",),
    ),
    # Jobs: what the application sends in a transaction, and what must not be stored in it
    Mutant(
        "jobs-a-retry-is-stored-and-rolled-back",
        "outbox/dramatiq/transactional.py",
        "        if is_handling_signal() or not self._is_in_transaction(box := current()):",
        "        if not self._is_in_transaction(box := current()):",
        # One database is enough: with this mutant the test waits for a minute.
        (f"{STRAIGHT_THROUGH}::test_dramatiqs_retries_are_not_rolled_back_with_the_failed_attempt[sqlite]",),
    ),
    Mutant(
        "jobs-are-matched-by-patterns",
        "outbox/delivery/dispatch.py",
        "audiences[event.event_type] if event.kind == EVENT else None",
        "audiences[event.event_type] if event.kind else None",
        (f"{SEND}::TestJobsAreAKindOfTheirOwn::test_no_pattern_matches_a_job",),
        also=(
            (
                "outbox/delivery/dispatch.py",
                " for event in batch.events if event.kind == EVENT}",
                " for event in batch.events}",
            ),
        ),
    ),
    Mutant(
        "jobs-before-enqueue-runs-at-the-delivery",
        "outbox/dramatiq/enqueue_now.py",
        '        if is_before and signal == "enqueue" and _state.is_enqueueing_stored:',
        "        if False:",
        (f"{SEND}::TestMiddleware",),
    ),
    Mutant(
        "jobs-before-enqueue-runs-at-the-delivery-into-redis",
        "outbox/dramatiq/redis_pipeline.py",
        "        if not are_stored:",
        "        if True:",
        (f"{TRANSACTIONAL}::TestOnRedis::test_before_enqueue_has_run_at_the_send_and_does_not_run_again",),
    ),
    Mutant(
        "jobs-are-replaced-after-an-attempt",
        "outbox/storage/status.py",
        "next_attempt_at IS NOT NULL AND attempts = 0 AND lease_id IS NULL",
        "next_attempt_at IS NOT NULL",
        (JOB_MODEL,),
    ),
    Mutant(
        "jobs-share-their-keys-with-events",
        "outbox/events/job_row.py",
        'PREFIX = "job:"',
        'PREFIX = ""',
        (f"{SEND}::TestJobsAreAKindOfTheirOwn::test_an_event_with_the_name_of_an_actor_is_no_job",),
    ),
    Mutant(
        "jobs-have-the-message-as-their-key",
        "outbox/dramatiq/job.py",
        "job_key(str(id) if key is None else key)",
        "job_key(message_id if key is None else key)",
        (f"{TRANSACTIONAL}::TestEnqueue::test_the_same_message_may_be_enqueued_twice",),
    ),
    Mutant(
        "jobs-without-confirms-on-rabbitmq",
        "outbox/dramatiq/rabbitmq.py",
        "        self._copy.confirm_delivery = True\n",
        "",
        (f"{TRANSACTIONAL}::TestOnRabbitmq",),
    ),
    Mutant(
        "jobs-go-to-the-broker-of-the-settings",
        "outbox/dramatiq/job_destination.py",
        "            broker = found if role is BrokerRole.SETTINGS or is_same else None",
        "            broker = found",
        (f"{JOB_BROKERS}::TestAWorkerWithoutTheApplicationsBroker",),
    ),
    Mutant(
        "jobs-of-two-brokers-are-mixed",
        "outbox/dramatiq/job_destination.py",
        "        return next(each for each in names if each not in taken)",
        "        return name",
        (f"{JOB_BROKERS}::TestSeveralBrokers",),
    ),
    Mutant(
        "jobs-wrong-settings-burn-attempts",
        "outbox/delivery/plan.py",
        "    except SettingsError as error:  # the settings",
        "    except ZeroDivisionError as error:  # the settings",
        (
            f"{JOB_BROKERS}::TestAWorkerWithoutTheApplicationsBroker::test_that_names_two_redis_servers_burns_no_attempt",
        ),
    ),
    Mutant(
        "jobs-an-interrupted-signal-lasts",
        "outbox/dramatiq/enqueue_now.py",
        'signals = 0 if is_before and signal == "process_message" else _state.signals',
        "signals = _state.signals",
        (
            f"{TRANSACTIONAL}::TestStraightThrough::test_a_time_limit_in_the_middle_of_a_signal_does_not_last_until_the_next_message",
        ),
    ),
    Mutant(
        "jobs-the-applications-transaction-is-discarded",
        "outbox/dramatiq/broker.py",
        "    add_once(broker, ClosedConnections(), is_first=True)",
        "    add_once(broker, ClosedConnections())",
        ("tests/faults/test_transactional_application.py",),
    ),
    Mutant(
        "jobs-deliveries-run-in-the-applications-transaction",
        "outbox/dramatiq/actors.py",
        "        with outside_transaction(database):\n            yield",
        "        yield",
        ("tests/faults/test_transactional_application.py", TRANSACTION_PER_MESSAGE),
    ),
    Mutant(
        "the-applications-transaction-keeps-the-lock-of-sqlite",
        "outbox/storage/private_connection.py",
        "    is_split = isinstance(database, peewee.SqliteDatabase) and connection.in_transaction",
        "    is_split = False",
        (TRANSACTION_PER_MESSAGE,),
    ),
    # A forgotten configure(database=db) is told of
    Mutant(
        "an-emit-outside-a-transaction-is-silent",
        "outbox/events/emit.py",
        "if (self._warned_of_no_transaction and not required) or self._dialect.in_transaction:",
        "if not required or self._dialect.in_transaction:",
        ("tests/events/test_transactions.py::test_a_transaction_on_another_database_object_is_a_warning",),
    ),
    # emit: which rights it needs, what it reads of a duplicate, and how it ends where there is no row to be seen
    Mutant(
        "emit-many-needs-the-sequence",
        "outbox/storage/sql/emit.py",
        "WHERE has_sequence_privilege(sequence, 'USAGE, UPDATE')",
        "",
        ("tests/storage/test_sequence_rights.py",),
    ),
    Mutant(
        "reserved-numbers-wait-for-other-transactions",
        "outbox/storage/sql/emit.py",
        "tenant_id, id::text,",
        "tenant_id, idempotency_key,",
        ("tests/storage/test_sequence_rights.py",),
    ),
    Mutant(
        "a-duplicate-is-read-whole",
        "outbox/events/emit.py",
        '"raise": [event.id],',
        '"raise": [],',
        ("tests/storage/test_permissions.py::test_an_application_that_may_not_read_events_emits_and_names_duplicates",),
    ),
    Mutant(
        "a-key-that-is-free-again-is-not-tried-again",
        "outbox/events/emit.py",
        "INSERT_TRIES = 3",
        "INSERT_TRIES = 0",
        ("tests/events/test_emit.py::test_a_duplicate_that_vanishes_in_between_is_inserted_again",),
    ),
    # The tables' names: two outboxes share a database and nothing else
    Mutant(
        "queries-read-the-tables-of-another-outbox",
        "outbox/storage/dialect.py",
        "            with tables_in_use(self.tables):",
        "            with tables_in_use(Tables()):",
        ("tests/test_table_names.py::test_two_outboxes_share_a_schema_and_nothing_else",),
    ),
    Mutant(
        "index-without-a-prefix",
        "outbox/table_names.py",
        '"index_prefix": f"idx_{self.prefix}"',
        '"index_prefix": "idx_outbox_"',
        ("tests/test_table_names.py::test_two_outboxes_share_a_schema_and_nothing_else",),
    ),
    # The fence: only the holder of the current lease is heard
    Mutant(
        "fence-of-delivered",
        DELIVERY_SQL,
        "{audience_of_type})\nWHERE {ids} AND lease_id = ?",
        "{audience_of_type})\nWHERE {ids} AND ? IS NOT NULL",
        (FENCE, "tests/delivery/test_settle.py::TestTheFence", MODEL),
    ),
    Mutant(
        "fence-of-settled",
        DELIVERY_SQL,
        "    updated_at = {now}\nWHERE id = ? AND lease_id = ?",
        "    updated_at = {now}\nWHERE id = ? AND ? IS NOT NULL",
        (FENCE, "tests/delivery/test_settle.py::TestTheFence", MODEL),
    ),
    Mutant(
        "fence-of-settled-on-postgres",
        DELIVERY_SQL,
        "order_state text))\nWHERE {ids} AND lease_id = ?",
        "order_state text))\nWHERE {ids} AND ? IS NOT NULL",
        (FENCE, "tests/delivery/test_settle.py::TestTheFence"),
    ),
    Mutant(
        "fence-of-released",
        DELIVERY_SQL,
        "attempts - 1, lease_id = NULL, lease_until = NULL, updated_at = {now}\nWHERE {ids} AND lease_id = ?",
        "attempts - 1, lease_id = NULL, lease_until = NULL, updated_at = {now}\nWHERE {ids} AND ? IS NOT NULL",
        (FENCE, "tests/delivery/test_settle.py::TestTheFence::test_a_late_give_back_is_a_counted_no_op", MODEL),
    ),
    Mutant(
        "fence-of-renewed",
        DELIVERY_SQL,
        "WHERE {ids} AND {leases} {skip_locked}",
        "WHERE {ids} AND ({leases} OR true) {skip_locked}",
        (FENCE, "tests/delivery/test_lease.py::TestRenewal", MODEL),
    ),
    Mutant(
        "fenced-but-not-counted",
        "outbox/delivery/settle_report.py",
        "    fenced = outcomes - len(delivered) - sum(others.values())",
        "    fenced = 0",
        (FENCE, MODEL),
    ),
    # The lease: what another has is left alone, until it has run out
    Mutant(
        "lease-filter-on-postgres",
        DELIVERY_SQL,
        "(lease_until IS NULL OR (%s AND lease_until <= {now}))",
        "(lease_until IS NULL OR %s)",
        (f"{CLAIM}::TestTheLease", MODEL),
    ),
    Mutant(
        "lease-filter-on-sqlite",
        DELIVERY_SQL,
        "(lease_until IS NULL OR (? AND lease_until <= {now}))",
        "(lease_until IS NULL OR ?)",
        (f"{CLAIM}::TestTheLease", MODEL),
    ),
    Mutant(
        "lease-never-runs-out-on-postgres",
        DELIVERY_SQL,
        "(%s AND lease_until <= {now})",
        "(%s AND lease_until <= {now} AND false)",
        (f"{CLAIM}::TestTheLease", "tests/invariants/test_i2_ends.py", MODEL),
    ),
    Mutant(
        "lease-never-renewed",
        "outbox/delivery/lease.py",
        "            self.renew([batch for batch in due",
        "            self.renew([batch for batch in due[:0]",
        ("tests/delivery/test_lease.py::TestRenewal::test_a_long_handler_keeps_its_lease_and_succeeds_once",),
    ),
    Mutant(
        "lost-lease-begins-all-the-same",
        "outbox/delivery/batch.py",
        "if self._closed or now >= self.valid_until or position in self._lost:",
        "if self._closed:",
        (f"{FENCE}::test_a_worker_that_slept_through_its_lease_begins_nothing", MODEL),
    ),
    Mutant(
        "due-filter-on-postgres",
        DELIVERY_SQL,
        "WHERE next_attempt_at >= %s AND next_attempt_at <= {now}",
        "WHERE next_attempt_at >= %s",
        (f"{CLAIM}::TestWhatIsDue", MODEL),
    ),
    Mutant(
        "what-lies-before-the-scan-position-is-forgotten",
        "outbox/delivery/claim.py",
        "if len(rows) >= size or (rows and rows[0][-1]):",
        "if True:",
        (f"{SCAN_POSITION}::TestClaims",),
    ),
    Mutant(
        "full-claims-never-scan-before-the-position",
        "outbox/delivery/scan_position.py",
        "if self._position is not None and now < self._full_scan_at[include_expired_leases]:",
        "if self._position is not None:",
        (f"{SCAN_POSITION}::TestClaims",),
    ),
    # Events from expired leases: alone in their batch, alone in their process, and not for ever
    Mutant(
        "expired-leases-with-others-on-postgres",
        DELIVERY_SQL,
        "THEN ARRAY(SELECT id FROM due WHERE suspect ORDER BY next_attempt_at LIMIT 1)",
        "THEN ARRAY(SELECT id FROM due)",
        (f"{CLAIM}::TestEventsFromExpiredLeases", MODEL),
    ),
    Mutant(
        "expired-leases-with-others-on-sqlite",
        "outbox/storage/sqlite.py",
        "chosen = expired_ids[:1] if expired_ids else [id for id, _ in due]",
        "chosen = [id for id, _ in due]",
        (f"{CLAIM}::TestEventsFromExpiredLeases", MODEL),
    ),
    Mutant(
        "embedded-jobs-end-when-they-are-enqueued",
        "outbox/dramatiq/job_destination.py",
        "isinstance(self._broker, InProcessBroker) and self._broker.completion.can_wait",
        "False",
        ("tests/faults/test_embedded_jobs.py::test_jobs_that_wait_are_not_lost_with_the_process",),
    ),
    Mutant(
        "embedded-retries-are-in-memory",
        "outbox/dramatiq/in_process_broker.py",
        "return self.completion.has_worker and current().is_worker",
        "return False and current().is_worker",
        ("tests/faults/test_embedded_jobs.py::test_a_retry_of_dramatiq_survives_the_process",),
    ),
    Mutant(
        "a-job-that-went-back-runs",
        "outbox/dramatiq/job_completion.py",
        '                raise SkipMessage("its job was given back to the table")\n',
        "",
        ("tests/dramatiq/test_job_completion.py",),
    ),
    Mutant(
        "expired-leases-for-ever",
        "outbox/delivery/plan.py",
        "return claims > max(event.max_attempts, 2)",
        "return False",
        ("tests/invariants/test_i2_ends.py::TestAnEventThatKillsItsWorkers", MODEL),
    ),
    Mutant(
        "expired-leases-are-not-alone-in-their-process",
        "outbox/delivery/quarantine.py",
        "                claim_again_in(alone)\n                return None\n",
        "",
        ("tests/delivery/test_quarantine.py::TestWhileAnEventFromAnExpiredLeaseIsInFlight",),
    ),
    Mutant(
        "expired-leases-stop-their-process",
        "outbox/delivery/quarantine.py",
        "newest + self._alone_seconds - time.monotonic()",
        "newest + 3600 - time.monotonic()",
        ("tests/delivery/test_quarantine.py::TestWhileAnEventFromAnExpiredLeaseIsInFlight",),
    ),
    Mutant(
        "expired-leases-beside-each-other",
        "outbox/delivery/quarantine.py",
        "            return False  # the event in flight may still kill",
        "            pass  # the event in flight may still kill",
        ("tests/delivery/test_quarantine.py::TestWhileAnEventFromAnExpiredLeaseIsInFlight",),
    ),
    Mutant(
        "expired-leases-beside-other-batches",
        "outbox/delivery/quarantine.py",
        "        return not self._recent_batches(token) or now",
        "        return True or now",
        (
            "tests/delivery/test_quarantine.py::TestWhileAnotherBatchIsInFlight::test_only_events_without_an_expired_lease_are_claimed",
        ),
    ),
    # Side by side
    Mutant(
        "skip-locked-in-the-claim",
        DELIVERY_SQL,
        "    LIMIT %s\n    FOR UPDATE SKIP LOCKED\n)",
        "    LIMIT %s\n    FOR UPDATE\n)",
        (f"{CLAIM}::TestOnPostgres::test_rows_that_another_transaction_has_locked_are_skipped_not_waited_for",),
    ),
    Mutant(
        "skip-locked-elsewhere",
        "outbox/storage/statements.py",
        '"skip_locked": "FOR UPDATE SKIP LOCKED",',
        '"skip_locked": "FOR UPDATE",',
        ("tests/invariants/test_hard_cases.py::TestALockedRow",),
    ),
    Mutant(
        "flag-cleared-after-the-drain",
        "outbox/dramatiq/wakeup.py",
        """    try:
        flag.clear()
    except Exception as error:
        logger.warning("Could not clear the wake-up flag: %s It expires after a second.", as_sentence(error))
    drain()
""",
        """    drain()
    try:
        flag.clear()
    except Exception as error:
        logger.warning("Could not clear the wake-up flag: %s It expires after a second.", as_sentence(error))
""",
        ("tests/dramatiq/test_wakeup.py::TestInEveryOrder",),
    ),
    Mutant(
        "flag-left-set-when-sending-fails",
        "outbox/dramatiq/wakeup.py",
        "        with contextlib.suppress(Exception):\n            flag.clear()\n        raise",
        "        raise",
        ("tests/dramatiq/test_wakeup.py::TestInEveryOrder",),
    ),
    Mutant(
        "suppressed-by-other-actors-messages",
        "outbox/dramatiq/wakeup_flag.py",
        "if unanswered >= tonumber(ARGV[1]) and redis.call",
        "if redis.call",
        ("tests/dramatiq/test_wakeup.py::TestMessages",),
    ),
    Mutant(
        "flag-that-no-process-clears",
        "outbox/dramatiq/wakeup.py",
        "    return MinimumInterval()\n",
        "    return LocalFlag()\n",
        ("tests/dramatiq/test_wakeup.py::TestWithoutAFlag",),
    ),
    # Who delivers
    Mutant(
        "emitters-declare-the-actors",
        "outbox/dramatiq/wakeup.py",
        "        send_wakeup(broker, box.settings.queue, box.name)\n",
        "        __import__('outbox.dramatiq.actors', fromlist=['']).declare_actors(broker, box.settings)\n"
        "        send_wakeup(broker, box.settings.queue, box.name)\n",
        ("tests/dramatiq/test_own_broker.py::TestAWorkerThatOnlyEmits",),
    ),
    Mutant(
        "every-process-is-a-worker",
        "outbox/dramatiq/actors.py",
        "    drain = box.drain if _is_worker(box) else _do_nothing\n",
        "    drain = box.drain\n",
        (OWN_WORKER,),
    ),
    Mutant(
        "workers-without-handlers",
        "outbox/core.py",
        "        self.check_registered(modules, has_jobs=has_jobs)\n        self.is_worker = True",
        "        self.is_worker = True",
        ("tests/dramatiq/test_readiness.py::test_without_handlers",),
    ),
    Mutant(
        "delivered-to-nobody-by-a-worker",
        "outbox/delivery/plan.py",
        "    if context.registry.is_empty and not context.is_worker():",
        "    if context.registry.is_empty:",
        ("tests/delivery/test_deliver.py::TestNothingRegistered",),
    ),
    Mutant(
        "actors-on-the-queue-of-the-environment",
        "outbox/dramatiq/worker.py",
        "        declare_actors(broker, box.settings, box.name)\n",
        "        declare_actors(broker, outbox.Settings.load(), box.name)\n",
        # In the processes of the other test each command is waited for in vain, until patience ends.
        (f"{QUEUE_OF_ITS_OWN}::test_is_the_one_that_a_starting_worker_declares_its_actors_on",),
    ),
    # Encryption at rest
    Mutant(
        "ciphertext-is-bound-to-no-column",
        "outbox/encryption/cipher.py",
        'return column + b"\\0" + id.bytes',
        "return id.bytes",
        ("tests/encryption/test_cipher.py::test_a_text_of_another_row_or_column_is_refused",),
    ),
    Mutant(
        "ciphertext-is-delivered-without-a-key",
        "outbox/delivery/dispatch.py",
        "if event.is_encrypted and (problem := decrypt(context, event)) is not None:",
        "if (problem := None) is not None:",
        ("tests/delivery/test_decrypt.py::test_an_event_waits_for_a_worker_that_has_its_key",),
    ),
    Mutant(
        "many-events-are-stored-in-plain-text",
        "outbox/events/emit.py",
        "return drafts if cipher is None else [encrypted(draft, cipher, draft.id) for draft in drafts]",
        "return drafts",
        ("tests/events/test_encryption.py::test_plain_text_is_nowhere_in_the_tables",),
    ),
    Mutant(
        "replaced-content-is-encrypted-for-another-row",
        "outbox/events/emit.py",
        "encrypted(draft, self._encrypting, id), id)",
        "encrypted(draft, self._encrypting, draft.id), id)",
        ("tests/events/test_encryption.py::test_replace_encrypts_for_the_row_that_stays",),
    ),
    Mutant(
        "reencrypt-changes-rows-under-a-lease",
        "outbox/storage/sql/encryption.py",
        "    AND (lease_until IS NULL OR lease_until <= {now}) {skip_locked}){end}",
        "    {skip_locked}){end}",
        ("tests/operations/test_reencrypt.py::test_a_row_under_a_lease_is_skipped_and_reported",),
    ),
    # Emit, and the inbox
    Mutant(
        "emit-through-another-connection",
        "outbox/events/emit.py",
        "self._stored(draft, on_duplicate, self._insert(draft))",
        "__import__('tests.support.crowd', fromlist=['']).elsewhere("
        "self._dialect.database, lambda: self._stored(draft, on_duplicate, self._insert(draft)))",
        # One of the four kinds is enough: with this mutant each of them waits for half a minute.
        ("tests/invariants/test_i1_committed.py::test_exactly_the_committed_events_are_delivered[postgres-off]",),
    ),
    Mutant(
        "inbox-insert",
        "outbox/inbox/inbox.py",
        "                    version = self._insert(key)",
        '                    version = "1"',
        (
            "tests/inbox/test_once.py::TestHandlersAndMessages",
            "tests/inbox/test_races.py::test_twenty_threads_with_one_message_have_one_effect",
        ),
    ),
    Mutant(
        "limits-freeze-when-the-clock-goes-back",
        "outbox/throttle/redis_store.py",
        "decide(state.corrected_for_clock(now), now)",
        "decide(state, now)",
        (
            "tests/throttle/test_shared_limiter.py::TestWorkersThatShareARedis::test_read_a_state_from_before_the_clock_was_set_back_as_if_written_now",
        ),
    ),
    Mutant(
        "claim-reads-moments-as-they-are",
        "outbox/storage/statements.py",
        "GREATEST(next_attempt_at, {_EARLIEST})",
        "next_attempt_at",
        ("tests/delivery/test_claim.py::TestATimestampThatCanNotBeRead",),
    ),
    Mutant(
        "details-published-as-they-are",
        "outbox/telemetry/process_reports.py",
        "json.dumps(clean_json(details) | ",
        "json.dumps(details | ",
        ("tests/telemetry/test_process_reports.py::test_a_breakers_error_can_be_any_text",),
    ),
    Mutant(
        "inbox-row-outlives-a-handler-that-committed",
        "outbox/inbox/inbox.py",
        "            if self._delete_committed_row(key, version, nested=nested):",
        "            if False:",
        ("tests/inbox/test_transactions.py::TestAHandlerThatCommitsAndThenRaises",),
    ),
    Mutant(
        "inbox-row-of-a-rival-is-taken-back",
        "outbox/storage/sql/inbox.py",
        "message_id = ? AND handler_name = ? AND {version} = ? RETURNING 1",
        "message_id = ? AND handler_name = ? AND ? IS NOT NULL RETURNING 1",
        ("tests/inbox/test_transactions.py::test_a_handler_that_raises_leaves_the_row_of_another_that_came_after_it",),
    ),
    Mutant(
        "session-that-the-server-ended-is-an-outage",
        "outbox/consumer/handler_session.py",
        "        return before == self._started_at",
        "        return False",
        ("tests/consumer/test_handler_session.py",),
    ),
    Mutant(
        "restarted-server-costs-a-delivery",
        "outbox/consumer/handler_session.py",
        "        return before == self._started_at",
        "        return True",
        (
            "tests/consumer/test_handler_session.py::test_a_server_that_was_restarted_or_is_unavailable_has_not_ended_a_session",
        ),
    ),
    Mutant(
        "inbox-without-its-transaction",
        "outbox/inbox/inbox.py",
        "                with self.dialect.atomic():",
        "                with self.dialect.connection():",
        ("tests/inbox/test_transactions.py",),
    ),
    # What operators do: only to what is still in the state that it is for
    Mutant(
        "retry-of-what-has-not-failed",
        OPERATIONS_SQL,
        "WHERE id = ? AND {is_failed}",
        "WHERE id = ?",
        ("tests/operations/test_action_states.py::test_retry_changes_only_failed_events",),
    ),
    Mutant(
        "retry-of-anything",
        OPERATIONS_SQL,
        "WHERE id = ? AND {is_failed}",
        "WHERE id = ?",
        ("tests/operations/test_retry_failed_events.py::test_only_failed_events_are_changed", MODEL),
        also=(("outbox/operations/actions.py", "[*is_failed(), NOT_ERASED]", "[NOT_ERASED]"),),
    ),
    Mutant(
        "choice-of-what-is-retried",
        "outbox/operations/actions.py",
        "[*is_failed(), NOT_ERASED]",
        "[NOT_ERASED]",
        ("tests/operations/test_action_states.py::test_only_events_in_these_states_are_counted",),
    ),
    Mutant(
        "failing-of-what-is-being-delivered",
        OPERATIONS_SQL,
        "WHERE {ids} AND {is_unfinished} AND (lease_until IS NULL OR lease_until <= {now})",
        "WHERE {ids} AND {is_unfinished}",
        (f"{ACTIONS}::TestFailing::test_events_that_a_worker_is_delivering_are_not_changed", MODEL),
    ),
    Mutant(
        "failing-of-what-has-ended",
        OPERATIONS_SQL,
        "WHERE {ids} AND {is_unfinished} AND (lease_until",
        "WHERE {ids} AND (lease_until",
        ("tests/operations/test_action_states.py::test_fail_changes_only_waiting_events",),
    ),
    Mutant(
        "deleting-of-what-has-not-ended",
        OPERATIONS_SQL,
        '"DELETE FROM {event_table} WHERE {ids} AND {has_ended} RETURNING id"',
        '"DELETE FROM {event_table} WHERE {ids} RETURNING id"',
        ("tests/operations/test_action_states.py::test_delete_changes_only_ended_events",),
    ),
    Mutant(
        "replay-of-what-was-not-delivered",
        OPERATIONS_SQL,
        "WHERE {ids} AND {is_delivered}",
        "WHERE {ids}",
        ("tests/operations/test_action_states.py::test_replay_changes_only_delivered_events",),
    ),
    Mutant(
        "clean-up-of-what-has-not-ended",
        OPERATIONS_SQL,
        'ENDED = """{has_ended} AND COALESCE',
        'ENDED = """COALESCE',
        ("tests/storage/test_retention.py", MODEL),
    ),
    Mutant(
        "audit-outside-the-transaction",
        "outbox/operations/apply_action.py",
        """                changed = action.run(dialect, rows) if rows else ()
                entry.add(changed, rows[-1].id if rows else None)
                if action.makes_due and changed:
                    notify(dialect)
            total += len(changed)
""",
        """                changed = action.run(dialect, rows) if rows else ()
                if action.makes_due and changed:
                    notify(dialect)
            entry.add(changed, rows[-1].id if rows else None)
            total += len(changed)
""",
        ("tests/operations/test_action_states.py::test_a_change_that_can_not_be_audited_is_not_made",),
    ),
    # Safety
    Mutant(
        "signature-comparison",
        "outbox/webhooks/verify.py",
        "            matches |= hmac.compare_digest(expected, signature)",
        "            matches = True",
        ("tests/webhooks/test_verify.py::TestRefused::test_another_secret",),
    ),
    Mutant(
        "signature-compared-until-one-is-right",
        "outbox/webhooks/verify.py",
        "            matches |= hmac.compare_digest(expected, signature)",
        "            if hmac.compare_digest(expected, signature):\n                return True",
        ("tests/webhooks/test_verify.py::TestSecrecy",),
    ),
    Mutant(
        "signature-of-any-age",
        "outbox/webhooks/verify.py",
        "    if abs(age) > tolerance:",
        "    if False:",
        ("tests/webhooks/test_verify.py::TestRefused::test_a_request_that_is_too_old_or_from_the_future",),
    ),
    Mutant(
        "forged-token",
        "outbox/admin/web/csrf.py",
        'compare_digest(given.encode(errors="replace"), expected.encode())',
        "True",
        ("tests/admin/web/test_csrf.py::test_a_wrong_token_changes_nothing",),
    ),
    Mutant(
        "forged-from-another-page",
        "outbox/admin/web/csrf.py",
        "    if not _is_same_origin(request):",
        "    if False:",
        ("tests/admin/web/test_csrf.py::test_a_request_from_another_origin_is_refused",),
    ),
    Mutant(
        "password",
        "outbox/admin/web/passwords.py",
        "if compare_digest(password.encode(), expected.encode()) and account is not None:",
        "if account is not None:",
        ("tests/admin/web/test_authentication.py::test_any_other_password_is_refused",),
    ),
    Mutant(
        "access-for-what-is-no-name",
        "outbox/admin/web/authentication.py",
        "        if not isinstance(who, str) or not is_name(who):",
        "        if who is None:",
        ("tests/admin/web/test_authentication.py::test_only_a_name_is_accepted",),
    ),
    Mutant(
        "blank-names",
        "outbox/admin/web/passwords.py",
        'isinstance(given, str) and given.strip() != ""',
        "isinstance(given, str)",
        ("tests/admin/web/test_authentication.py::test_only_a_name_is_accepted",),
    ),
    Mutant(
        "password-of-a-missing-variable",
        "outbox/admin/web/passwords.py",
        "        if not (is_name(user) and is_name(password))",
        "        if False",
        ("tests/admin/web/test_authentication.py::test_a_missing_environment_variable_makes_no_password",),
    ),
    Mutant(
        "customers-as-operators",
        "outbox/admin/web/authentication.py",
        "return user.display_name if self._scope in credentials.scopes else None",
        "return user.display_name",
        ("tests/admin/web/test_authentication.py::test_a_customer_who_is_signed_in_is_refused",),
    ),
    Mutant(
        "authenticated-by-a-method",
        "outbox/admin/web/authentication.py",
        "user.is_authenticated is not True",
        "not user.is_authenticated",
        ("tests/admin/web/test_authentication.py::test_a_user_whose_is_authenticated_is_not_true_is_refused",),
    ),
    Mutant(
        "no-session-on-this-machine",
        "outbox/admin/web/login_link.py",
        "return self._name if _is_same(given, self._session) else None",
        "return self._name",
        ("tests/admin/web/test_process.py::test_behind_nginx_as_it_is_by_default_a_stranger_changes_nothing",),
    ),
    Mutant(
        "login-with-any-token",
        "outbox/admin/web/login_link.py",
        " or not _is_same(given, self._token)",
        "",
        ("tests/admin/web/test_login_link.py::test_a_wrong_token_opens_nothing",),
    ),
    Mutant(
        "login-link-that-works-twice",
        "outbox/admin/web/login_link.py",
        "        self._token = secrets.token_urlsafe(32)\n        response",
        "        response",
        ("tests/admin/web/test_login_link.py::test_a_link_works_once",),
    ),
    Mutant(
        "login-by-a-preview",
        "outbox/admin/web/login_link.py",
        ' and scope["method"] == "GET"',
        "",
        ("tests/admin/web/test_login_link.py::test_a_head_request_does_not_use_up_a_link",),
    ),
    Mutant(
        "login-through-a-unix-socket",
        "outbox/admin/web/login_link.py",
        "    if client is None or not is_loopback(client.host)",
        "    if (client is not None and not is_loopback(client.host))",
        ("tests/admin/web/test_login_link.py::test_a_unix_socket_and_another_machine_are_refused_with_the_secret_too",),
    ),
    Mutant(
        "login-under-another-name",
        "outbox/admin/web/login_link.py",
        ' or not is_loopback(host_name(connection.headers.get("host", ""))):',
        ":",
        ("tests/admin/web/test_login_link.py::test_a_foreign_name_that_resolves_here_is_refused_with_the_secret_too",),
    ),
    Mutant(
        "login-through-a-proxy",
        "outbox/admin/web/login_link.py",
        'return header in ("forwarded", "via", "x-real-ip") or header.startswith("x-forwarded")',
        "return False",
        ("tests/admin/web/test_login_link.py::test_what_came_through_a_proxy_is_refused_even_with_the_secret",),
    ),
    Mutant(
        "one-session-cookie-for-all-ports",
        "outbox/admin/web/login_link.py",
        '    return f"outbox_session_{80 if port is None else port}"',
        '    return "outbox_session_8642"',
        ("tests/admin/web/test_login_link.py::test_two_dashboards_on_one_host_do_not_sign_each_other_out",),
    ),
    Mutant(
        "masking",
        "outbox/admin/masking.py",
        "if self.hides(str(key)) or (names_a_secret",
        "if (names_a_secret",
        ("tests/admin/test_masking.py",),
    ),
    Mutant(
        "masking-of-show",
        "outbox/cli/show.py",
        "_whole_content(box, event) if unmasked else masked_content(box, event)",
        "Content(event.payload, event.headers)",
        ("tests/cli/test_commands.py::TestShow",),
    ),
    Mutant(
        "masking-of-the-page",
        "outbox/admin/web/pages.py",
        "Content(masking.masked(payload), None, headers)",
        "Content(payload, None, headers)",
        (
            "tests/admin/web/test_pages.py::test_values_of_secret_keys_are_not_shown",
            "tests/admin/web/test_pages.py::test_which_keys_are_masked_is_a_setting",
            "tests/test_security.py",
        ),
    ),
    Mutant(
        "interim-responses-without-end",
        "outbox/webhooks/transport/response_limits.py",
        "    if interim > MOST_INTERIM:",
        "    if False:",
        ("tests/webhooks/transport/test_response_limits.py::TestBeforeTheFinalResponse::test_one_more_is_no_response",),
    ),
    Mutant(
        "header-lines-without-end",
        "outbox/webhooks/transport/response_limits.py",
        "    if lines > MOST_LINES:",
        "    if False:",
        (
            "tests/webhooks/transport/test_response_limits.py::TestBeforeTheFinalResponse::test_header_lines_are_read_up_to_the_limit",
        ),
    ),
    Mutant(
        "header-bytes-without-end",
        "outbox/webhooks/transport/response_limits.py",
        "    if size > HEAD_BYTES:",
        "    if False:",
        (
            "tests/webhooks/transport/test_response_limits.py::TestBeforeTheFinalResponse::test_bytes_of_headers_are_read_up_to_the_limit",
        ),
    ),
    Mutant(
        "body-without-end",
        "outbox/webhooks/transport/httpcore_threads/response_meter.py",
        "if self._body_size >= BODY_WIRE_BYTES or self._body_lines >= BODY_LINES:",
        "if False:",
        ("tests/webhooks/transport/test_response_limits.py::test_a_body_is_cut_at_its_limits",),
    ),
    Mutant(
        "pieces-without-end",
        "outbox/webhooks/transport/httpcore_threads/response_meter.py",
        "        if self._reads > MOST_READS:",
        "        if False:",
        ("tests/webhooks/transport/test_response_limits.py::TestByteByByte",),
    ),
    Mutant(
        "unmetered-responses",
        "outbox/webhooks/transport/httpcore_threads/network_backend.py",
        "return self._meter.admit(received)",
        "return received",
        ("tests/webhooks/transport/test_response_limits.py::TestBeforeTheFinalResponse::test_one_more_is_no_response",),
    ),
    Mutant(
        "limits-over-a-connection",
        "outbox/webhooks/transport/httpcore_threads/network_backend.py",
        "        self._meter.begin()\n",
        "",
        (
            "tests/webhooks/transport/test_response_limits.py::TestBeforeTheFinalResponse::test_on_a_kept_connection_they_are_counted_for_each_request",
        ),
    ),
    Mutant(
        "steps-without-end",
        "outbox/webhooks/transport/libcurl/multi_loop.py",
        "            if self._steps_left < 0:",
        "            if False:",
        (
            "tests/webhooks/transport/test_response_limits.py::TestByteByByte::test_a_header_that_comes_byte_by_byte_costs_few_steps",
        ),
    ),
    Mutant(
        "private-addresses",
        "outbox/webhooks/transport/httpcore_threads/network_backend.py",
        "        if self._public_only:\n            check_public(host, addresses)\n",
        "",
        ("tests/webhooks/transport/test_public_address.py::test_loopback_is_refused_however_it_is_written",),
    ),
    Mutant(
        "one-private-address-of-several",
        "outbox/webhooks/transport/public_address.py",
        "    for address in addresses:\n        if not is_public",
        "    for address in addresses[:1]:\n        if not is_public",
        ("tests/webhooks/transport/test_public_address.py::test_one_private_address_is_enough_to_refuse_a_name",),
    ),
    Mutant(
        "secrets-in-errors",
        "outbox/webhooks/response_policy.py",
        "self._redaction.redact(text, SEARCHED_LENGTH)",
        "text[:SEARCHED_LENGTH]",
        ("tests/webhooks/test_response_policy.py", "tests/fuzz/test_webhook_responses.py", "tests/test_security.py"),
        # Secrets are also searched as the event's values are, so that parts of them are found.
        also=(("outbox/webhooks/response_policy.py", "values = (*self._redaction.texts, ", "values = ("),),
    ),
    Mutant(
        "payloads-in-errors",
        "outbox/webhooks/response_policy.py",
        "cleaned = hide_values(known, values, is_cut=len(text) > SEARCHED_LENGTH)",
        "cleaned = known",
        ("tests/webhooks/test_response_policy.py::TestWhatTheEventContains",),
    ),
    Mutant(
        "payloads-in-errors-as-escapes",
        "outbox/webhooks/redaction.py",
        "        plain = normalized(value)\n",
        "        plain = value\n",
        ("tests/webhooks/test_redaction.py::test_a_value_is_hidden_however_it_is_written",),
    ),
    Mutant(
        "parts-of-secrets-in-errors",
        "outbox/webhooks/response_policy.py",
        "(*self._redaction.texts, *texts_in(event.payload), ",
        "(*texts_in(event.payload), ",
        ("tests/webhooks/test_response_policy.py::TestRedaction::test_a_part_of_a_token_is_not_stored",),
    ),
    Mutant(
        "own-public-address",
        "outbox/webhooks/transport/public_address.py",
        "        if is_own(address.text):",
        "        if False:",
        ("tests/webhooks/transport/test_public_address.py", "tests/webhooks/transport/test_tunnels.py"),
    ),
    Mutant(
        "another-tenants-event",
        "outbox/events/emit.py",
        "    if existing.tenant_id != draft.tenant_id:",
        "    if False:",
        ("tests/events/test_tenants.py",),
    ),
    Mutant(
        "log-lines-that-are-forged",
        "outbox/telemetry/logs.py",
        "safe.msg, safe.args = visible(record.getMessage()), None",
        "safe.msg, safe.args = record.getMessage(), None",
        ("tests/telemetry/test_logs.py::TestText",),
    ),
    Mutant(
        "files-that-all-can-read",
        "outbox/storage/connect.py",
        "PRIVATE_MODE = 0o600",
        "PRIVATE_MODE = 0o644",
        ("tests/storage/test_private_file.py",),
    ),
    # What a call may hold, and what it may return
    Mutant(
        "places-of-stuck-calls-are-free",
        "outbox/throttle/stuck_calls.py",
        "        return concurrency_limit.hold(state, extended) if extended else state",
        "        return state",
        ("tests/throttle/test_stuck_calls.py",),
    ),
    Mutant(
        "stuck-and-never-told",
        "outbox/throttle/stuck_calls.py",
        "        if stuck is None or not stuck.all_slots:",
        "        if True or stuck is None or not stuck.all_slots:",
        ("tests/throttle/test_stuck_calls.py::TestStuckCalls",),
    ),
    Mutant(
        "a-small-pool-costs-attempts",
        "outbox/destinations/handler.py",
        "        if is_pool_exhausted(error):\n",
        "        if False:\n",
        ("tests/delivery/test_pool.py",),
    ),
    Mutant(
        "a-small-pool-is-not-waited-for",
        "outbox/destinations/handler.py",
        "if not again and is_pool_exhausted(error) and lease.wait_for_connection():",
        "if False:",
        ("tests/delivery/test_pool.py",),
    ),
    Mutant(
        "a-small-pool-is-the-destinations-fault",
        "outbox/delivery/share.py",
        "        if admission is not None and not lacked_connection:",
        "        if admission is not None:",
        ("tests/delivery/test_pool.py",),
    ),
    Mutant(
        "lease-keeper-settles-itself",
        "outbox/delivery/lease.py",
        '                    self._in_thread(batch, "end of the time slice", batch.on_slice_end)',
        "                    batch.on_slice_end()",
        ("tests/delivery/test_lease.py::TestARowThatAnotherTransactionHasLocked",),
    ),
    Mutant(
        "lease-ends-while-outcomes-are-written",
        "outbox/delivery/batch.py",
        "*self._finished, *self._being_written)",
        "*self._finished)",
        ("tests/delivery/test_lease.py::TestARowThatAnotherTransactionHasLocked",),
    ),
    Mutant(
        "deferred-work-is-delivered",
        "outbox/destinations/handler_result.py",
        "    if result is None or not isinstance(result, UNFINISHED):",
        "    if True:",
        ("tests/destinations/test_handler_result.py",),
    ),
    Mutant(
        "events-known-by-their-sequence-number",
        "outbox/delivery/batch.py",
        "            event.position = position\n",
        "            event.position = event.seq\n",
        ("tests/delivery/test_dispatch.py::TestDestinations", "tests/delivery/test_batch.py"),
    ),
    Mutant(
        "a-cancellation-stops-the-neighbours",
        "outbox/destinations/handler.py",
        "CALL_ERRORS = (Exception, SystemExit, CancelledError)",
        "CALL_ERRORS = (Exception, SystemExit)",
        ("tests/destinations/test_handler.py::TestOtherErrors", "tests/delivery/test_dispatch.py::TestDestinations"),
    ),
    Mutant(
        "a-wait-that-was-asked-for-counts-as-an-outage",
        "outbox/delivery/retry.py",
        "seconds=entry.asked_seconds + paused)",
        "seconds=0)",
        ("tests/delivery/test_retry.py::TestUnavailable",),
    ),
    # What is shared by all workers
    Mutant(
        "probe-one-at-a-time",
        "outbox/throttle/decision.py",
        "    probing = circuit_breaker.begin_probe(state, now, request.hold_seconds)",
        "    probing = state",
        ("tests/throttle/test_circuit_breaker.py::TestAnOpenBreaker::test_allows_nothing_but_one_probe_at_a_time",),
    ),
    Mutant(
        "probe-of-one-event",
        "outbox/throttle/decision.py",
        "    return probing, Decision(1, at_once=1, probe=True",
        "    return probing, Decision(request.events, at_once=1, probe=True",
        ("tests/throttle/test_circuit_breaker.py",),
    ),
    Mutant(
        "counts-lost-with-a-commit-that-failed",
        "outbox/telemetry/process_reports.py",
        "        if self._unconfirmed is not None:\n            self._write",
        "        if False:\n            self._write",
        ("tests/telemetry/test_process_reports.py::TestCounts::test_that_could_not_be_written_are_in_the_next_report",),
    ),
    Mutant(
        "counts-doubled-by-a-commit-unheard-of",
        "outbox/storage/sql/telemetry.py",
        "WHERE COALESCE({parcel}, 0) < ?",
        "WHERE COALESCE({parcel}, 0) < 1000000 OR ? IS NOT NULL",
        ("tests/telemetry/test_process_reports.py::TestCounts::test_whose_commit_was_not_confirmed_are_counted_once",),
    ),
    Mutant(
        "give-back-costs-an-attempt",
        DELIVERY_SQL,
        "SET status = 'pending', attempts = attempts - 1, lease_id",
        "SET status = 'pending', lease_id",
        ("tests/delivery/test_settle.py::TestGivingBack", MODEL),
    ),
    # Between the library and PostgreSQL
    Mutant(
        "claims-in-any-encoding",
        "outbox/storage/postgres.py",
        "        self.check_encoding()  # an event whose outcome can't be stored would be sent again and again\n",
        "",
        (f"{ENCODING}::test_nothing_is_claimed_where_its_outcome_could_not_be_stored",),
    ),
    Mutant(
        "client-encoding-not-looked-at",
        "outbox/storage/postgres.py",
        "        if client != self.UTF8:",
        "        if client == '':",
        (f"{ENCODING}::test_a_connection_in_another_encoding_is_refused_wherever_it_is_used",),
    ),
    Mutant(
        "waits-for-a-host-that-vanished",
        "outbox/storage/connect.py",
        '    "tcp_user_timeout": 15_000,  # milliseconds\n',
        "",
        ("tests/test_settings.py::test_a_connection_whose_data_nobody_acknowledges_ends_after_seconds",),
    ),
    Mutant(
        "statements-prepared-all-the-same",
        "outbox/storage/connect.py",
        '        parameters["prepare_threshold"] = None',
        '        parameters["prepare_threshold"] = 5',
        ("tests/test_settings.py::test_statements_are_prepared_unless_the_setting_or_the_address_forbids_it",),
    ),
    # Every destination of the deployment has it, whichever worker claimed the event
    Mutant(
        "audience-of-one-worker-alone",
        "outbox/delivery/audience.py",
        "absent = tuple(name for name in snapshot.wanting(event_type) if name not in names)",
        "absent: tuple[str, ...] = ()",
        (f"{AUDIENCE}::TestAWorkerThatLacksADestination",),
    ),
    Mutant(
        "claims-before-it-records",
        "outbox/delivery/deliver.py",
        "                context.recorder.keep_current()\n",
        "                pass\n",
        (f"{AUDIENCE}::TestRecording",),
    ),
    Mutant(
        "destinations-are-read-once",
        "outbox/destinations/recorded_destinations.py",
        "        return latest if all(version == latest.version for version in versions) else self.read()",
        "        return latest if latest.version != -1 else self.read()",
        (f"{AUDIENCE}::TestAWorkerThatLacksADestination::test_learns_of_a_destination_that_was_recorded_while_it_ran",),
    ),
    Mutant(
        "a-new-destination-is-no-new-version",
        "outbox/destinations/recorder.py",
        "                changed |= wants_others or known is None or not known.alive",
        "                changed |= known is not None and known.retired",
        (f"{RECORD}::TestTheVersion", AUDIENCE),
    ),
    Mutant(
        "absence-costs-age",
        "outbox/delivery/retry.py",
        "        absences=entry.absences + 1,\n",
        "        absences=entry.absences + 1, waits=entry.waits + 1, since=entry.since or now,\n",
        (f"{AUDIENCE}::TestAWorkerThatLacksADestination::test_costs_the_event_no_attempt_and_no_age",),
    ),
    Mutant(
        "retired-shares-stay-open",
        "outbox/delivery/plan.py",
        "            progress[name] = progress[name].retired()",
        "            pass",
        (f"{AUDIENCE}::TestARetiredDestination",),
    ),
    Mutant(
        "the-replaced-and-its-successor-both-deliver",
        "outbox/destinations/recorder.py",
        "    if successor is None or successor.retired or not successor.alive or successor.name in replaced:",
        "    if True:",
        (f"{AUDIENCE}::TestASuccessor::test_keeps_the_old_one_out_while_both_are_running",),
    ),
    Mutant(
        "a-successor-begins-anew",
        "outbox/delivery/plan.py",
        "                progress[successor] = before",
        "                pass",
        (f"{AUDIENCE}::TestASuccessor::test_goes_on_where_the_one_that_it_replaces_stopped",),
    ),
    Mutant(
        "a-standstill-retires-destinations",
        "outbox/storage/statements.py",
        "LEAST(EXTRACT(EPOCH FROM statement_timestamp() - checked_at), ?)",
        "GREATEST(EXTRACT(EPOCH FROM statement_timestamp() - checked_at), ?)",
        ("tests/destinations/test_retirement.py::TestAbsence::test_while_no_worker_runs_at_all_does_not_count",),
    ),
    Mutant(
        "who-had-it-is-not-written",
        DELIVERY_SQL,
        "audience = COALESCE({number}, {audience_of_type})",
        "audience = 0 * COALESCE({number}, {audience_of_type})",
        (f"{AUDIENCE}::test_the_audience_of_each_event_is_written_in_mixed_batches",),
    ),
    # Without the broker and without the scheduler: workers look by themselves, and no wake-up is forgotten
    Mutant(
        "refused-wake-up-forgotten",
        "outbox/delivery/drain_limit.py",
        "                self._claim_requested = True",
        "                self._claim_requested = False",
        (f"{DRAINS}::TestSlots", f"{DRAINS}::TestDrains"),
    ),
    Mutant(
        "drain-ends-though-a-wake-up-was-refused",
        "outbox/delivery/deliver.py",
        "if not goes_on and slot.release():",
        "if not goes_on:",
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
        "idle_seconds >= allowed_seconds * self._live_workers()",
        "idle_seconds >= allowed_seconds",
        (f"{POLLER}::TestWithABroker",),
    ),
    Mutant(
        "a-broker-that-hangs-counts-as-reached",
        "outbox/dramatiq/broker_probe.py",
        '            return f"no response within {PROBE_SECONDS:g} s"',
        "            return None",
        ("tests/dramatiq/test_broker_probe.py",),
    ),
    Mutant(
        "a-worker-without-a-poller",
        "outbox/dramatiq/middleware.py",
        "    return [FallbackPoller(box, broker), *listeners]",
        "    return [*listeners]",
        ("tests/dramatiq/test_middleware.py::test_an_outbox_worker_has_a_fallback_poller_for_as_long_as_it_runs",),
    ),
    Mutant(
        "the-history-of-an-event-grows",
        "outbox/delivery/attempts.py",
        "delivery.event.has_progress or len",
        "len",
        ("tests/delivery/test_attempts.py::test_an_event_keeps_its_newest_attempts",),
    ),
    # Wake-ups from Redis
    Mutant(
        "wake-ups-pile-up",
        "outbox/dramatiq/wakeup_flag.py",
        "if redis.call('LLEN', KEYS[5]) == 0 then redis.call('RPUSH', KEYS[5], 1) end",
        "redis.call('RPUSH', KEYS[5], 1)",
        (f"{LISTENER}::TestAnEmitter",),
    ),
    Mutant(
        "a-dead-listener-is-relied-on",
        "outbox/dramatiq/wakeup_listener.py",
        "self._client.set(self._mark_key, 1, px=MARK_MILLISECONDS)",
        "self._client.set(self._mark_key, 1)",
        (f"{LISTENER}::TestAListener::test_counts_for_some_seconds_after_its_process_was_killed",),
    ),
    Mutant(
        "a-listener-that-redis-refuses-is-relied-on",
        "outbox/dramatiq/wakeup_listener.py",
        "        if could_receive and time.monotonic()",
        "        if time.monotonic()",
        (f"{LISTENER}::TestWhereRedisDoesNotLetItWait",),
    ),
    Mutant(
        "a-busy-listener-takes-wake-ups",
        "outbox/dramatiq/wakeup_listener.py",
        "if self._box.delivery.drain_limit.wait_for_slot(BLOCK_SECONDS) and self._receive():",
        "if self._receive():",
        (
            f"{LISTENER}::TestAListener::test_leaves_wake_ups_to_other_workers_while_all_drains_of_its_process_are_running",
        ),
    ),
    Mutant(
        "replies-of-an-interrupted-stream-are-left-to-the-next-user",
        "outbox/destinations/redis_commands.py",
        "        connection.disconnect()  # the thread was interrupted\n",
        "",
        ("tests/destinations/test_stream.py::TestAnInterrupt",),
    ),
    Mutant(
        "events-that-come-alone-never-see-an-open-breaker",
        "outbox/throttle/limiters.py",
        "        self._has_to_read = True\n",
        "",
        ("tests/throttle/test_shared_limiter.py::TestWorkersThatShareARedis",),
    ),
    Mutant(
        "a-handler-keeps-others-from-listening",
        "outbox/delivery/drain_thread.py",
        "        self._hand_over()\n",
        "",
        (f"{DRAIN_THREAD}::TestAnEventAlone",),
    ),
    Mutant(
        "a-thread-keeps-a-batch-though-a-wake-up-was-refused",
        "outbox/delivery/drain_thread.py",
        "not self._slot.release():",
        "self._slot.release() is None:",
        (f"{DRAIN_THREAD}::TestEventsThatAreHandledInThreadsOfTheirOwn",),
    ),
    Mutant(
        "a-drains-own-thread-is-not-interrupted",
        "outbox/delivery/drain_thread.py",
        "        interrupt_when_overdue(batch, [thread], completion)\n",
        "",
        (f"{DRAIN_THREAD}::TestAnEventAlone",),
    ),
    Mutant(
        "a-listener-that-stops-keeps-the-wake-up",
        "outbox/dramatiq/wakeup_listener.py",
        "            if self._stopped.is_set():\n                self._box.notifier.notify()",
        "            if False:\n                self._box.notifier.notify()",
        (f"{LISTENER}::TestAListener::test_passes_a_wake_up_on_if_it_stops_meanwhile",),
    ),
    Mutant(
        "a-lost-connection-loses-the-wake-up",
        "outbox/dramatiq/wakeup_listener.py",
        "            self._box.dialect.discard_connection()\n            self._box.drain(DrainThread(hand_over))",
        "            self._box.dialect.discard_connection()",
        (f"{LISTENER}::TestAListener::test_tries_again_at_once_if_the_connection_was_lost_while_it_waited",),
    ),
    Mutant(
        "ready-before-it-is-recorded",
        "outbox/core.py",
        "            self.recorder.keep_current()\n",
        "            pass\n",
        (f"{RECORD}::TestAWorker::test_has_recorded_its_destinations_when_it_is_ready_and_has_claimed_nothing",),
    ),
    Mutant(
        "retired-once-retired-for-ever",
        "outbox/destinations/recorder.py",
        "    if known.retired_by not in RETIRED_BY_SYSTEM:",
        "    if True:",
        (f"{RENAMES}::TestARetiredName",),
    ),
    Mutant(
        "a-share-that-was-retired-stays-so",
        "outbox/storage/progress.py",
        "        return replace(self, state=WAITING) if self.state == RETIRED else self",
        "        return self",
        (f"{RENAMES}::TestARetiredName::test_that_is_back_gets_what_still_waits_for_another",),
    ),
    Mutant(
        "idle-workers-are-absent",
        "outbox/dramatiq/fallback_poller.py",
        "            self._refresh_records()\n",
        "            pass\n",
        ("tests/dramatiq/test_fallback_poller.py",),
    ),
    # Periodic jobs: each scheduled time once
    Mutant(
        "periodic-without-compare",
        PERIODIC_SQL,
        "AND last_scheduled_at {is_same} {moment} AND schedule",
        "AND (last_scheduled_at {is_same} {moment} OR true) AND schedule",
        (f"{PERIODIC}::TestOnce::test_of_two_schedulers_that_have_read_the_same_one_stores",),
    ),
    Mutant(
        "periodic-whoever-advances-it",
        STORE_RUNS,
        "            if not self._recorded.advance(",
        "            if None is self._recorded.advance(",
        (f"{PERIODIC}::TestOnce::test_of_two_schedulers_that_have_read_the_same_one_stores",),
    ),
    Mutant(
        "periodic-run-in-another-transaction",
        STORE_RUNS,
        "        with self._box.dialect.atomic():\n            if not self._recorded.advance(",
        "        if True:\n            if not self._recorded.advance(",
        (f"{PERIODIC}::TestOnce::test_the_run_and_the_last_time_are_stored_together_or_not_at_all",),
    ),
    Mutant(
        "periodic-last-time-is-not-remembered",
        PERIODIC_SQL,
        "SET last_scheduled_at = {moment}, next_run_at = {moment}",
        "SET scheduled_from = COALESCE(scheduled_from, {moment}), next_run_at = {moment}",
        (f"{PERIODIC}::TestOnce::test_a_time_is_not_run_again_after_clean_up_has_deleted_its_run",),
    ),
    Mutant(
        "periodic-by-the-hosts-clock",
        STORE_RUNS,
        "due_times(job.schedule, job.catch_up, recorded.after, recorded.now)",
        "due_times(job.schedule, job.catch_up, recorded.after, datetime.now(recorded.now.tzinfo))",
        (COMPRESSED_TIME,),
    ),
    Mutant(
        "periodic-intervals-from-the-start-of-the-process",
        "outbox/scheduler/schedule.py",
        "start_date=EPOCH",
        "start_date=datetime.now(UTC)",
        ("tests/scheduler/test_schedule.py::TestIntervals",),
    ),
    Mutant(
        "periodic-paused-in-between",
        PERIODIC_SQL,
        "AND schedule = ? AND timezone = ? AND NOT paused",
        "AND schedule = ? AND timezone = ?",
        (f"{PERIODIC}::TestPauseAndResume::test_a_job_that_is_paused_after_it_was_read_is_not_run",),
    ),
    Mutant(
        "periodic-pause-is-caught-up-with",
        PERIODIC_SQL,
        "SET paused = false, scheduled_from = {now}, next_run_at",
        "SET paused = false, next_run_at",
        (f"{PERIODIC}::TestPauseAndResume",),
    ),
    Mutant(
        "periodic-request-is-taken-twice",
        PERIODIC_SQL,
        "SET requested_at = NULL WHERE name = ? AND requested_at = {moment}",
        "SET requested_at = NULL WHERE name = ? AND {moment} IS NOT NULL",
        (f"{PERIODIC}::TestRunNow::test_is_one_run_and_does_not_move_the_schedule",),
    ),
    Mutant(
        "periodic-runs-overlap",
        STORE_RUNS,
        "        if job.overlap == SKIP and self._recorded",
        "        if job.overlap == '' and self._recorded",
        (f"{PERIODIC}::TestOverlap::test_skip_leaves_out_a_run_while_the_one_before_it_has_not_ended",),
    ),
    Mutant(
        "periodic-changed-schedule-runs-the-past",
        PERIODIC_SQL,
        "THEN {periodic_table}.scheduled_from ELSE EXCLUDED.scheduled_from END",
        "THEN {periodic_table}.scheduled_from ELSE {periodic_table}.scheduled_from END",
        (f"{PERIODIC}::TestMissedTimes::test_a_changed_schedule_applies_from_now_on",),
    ),
    Mutant(
        "periodic-days-of-the-week-from-monday",
        "outbox/scheduler/crontab.py",
        '_weekdays(text) if field == "day_of_week" else text',
        "text",
        ("tests/scheduler/test_schedule.py::TestCronExpressions::test_count_the_days_of_the_week_as_cron_does",),
    ),
    # Order per key
    Mutant(
        "order-no-look-at-predecessors",
        "outbox/delivery/dispatch.py",
        "    if not batch.has_keys:",
        "    if True:",
        (
            f"{ORDER}::TestOneKey::test_events_emitted_while_one_is_retried_wait_too",
            f"{ORDER}::TestSeveralWorkers::test_an_event_waits_while_another_worker_has_the_one_before_it",
            ORDER_MODEL,
        ),
    ),
    Mutant(
        "order-waiting-events-are-overtaken",
        "outbox/delivery/ordering.py",
        "            if any(first_waiting.get(name, seq) < seq for name in names):",
        "            if False:",
        (
            f"{ORDER}::TestSeveralWorkers::test_none_overtakes_an_event_that_waits_though_nothing_holds_it_back_any_more",
        ),
    ),
    Mutant(
        "order-one-that-is-parked-between-two-reads-is-overtaken",
        "outbox/delivery/ordering.py",
        "more.first_waiting | first)",
        "first_waiting)",
        (
            f"{INTERLEAVINGS}::TestManyEventsInFront::test_one_that_is_parked_between_two_reads_holds_back_the_later_ones",
        ),
    ),
    Mutant(
        "order-one-that-is-released-between-two-reads-is-overtaken",
        "outbox/delivery/ordering.py",
        "more.first_waiting | first)",
        "more.first_waiting)",
        (
            f"{INTERLEAVINGS}::TestManyEventsInFront::test_one_that_is_released_between_two_reads_holds_back_the_later_ones",
        ),
    ),
    Mutant(
        "order-only-the-first-events-of-a-key-are-read",
        "outbox/delivery/ordering.py",
        "if index < len(holders) or key not in self._have_more:",
        "if True:",
        (f"{INTERLEAVINGS}::TestManyEventsInFront",),
    ),
    Mutant(
        "order-an-event-that-waits-is-due-after-a-pause",
        "outbox/storage/progress.py",
        "entry = replace(self, reason=None) if self.reason in (PAUSED, THROTTLED) else self",
        "entry = self",
        (f"{ORDER}::TestPause",),
        # Each of the two is enough.
        also=(
            (
                "outbox/storage/sql/control.py",
                'next_attempt_at > {now} AND next_attempt_at < {latest}\n"',
                'next_attempt_at > {now}\n"',
            ),
        ),
    ),
    Mutant(
        "order-waiting-events-are-not-recorded",
        "outbox/delivery/settle.py",
        "        updated = int(dialect.run(dialect.statements.parked, (ids, dialect.id(batch.lease_id))).rowcount)\n"
        "        add_waiting(dialect, _waits(parked))",
        "        updated = int(dialect.run(dialect.statements.parked, (ids, dialect.id(batch.lease_id))).rowcount)",
        (f"{ORDER}::TestOneKey", ORDER_MODEL),
    ),
    Mutant(
        "order-waiting-events-are-not-parked",
        ORDER_SQL,
        "attempts = attempts - 1, next_attempt_at = {latest}, order_state = 'waits'",
        "attempts = attempts - 1, order_state = 'holds'",
        (f"{ORDER}::TestOneKey::test_an_event_that_waits_costs_no_attempt_and_is_claimed_once",),
    ),
    Mutant(
        "order-followers-are-not-released",
        "outbox/delivery/settle.py",
        "release_after(context, batch, [delivery for delivery in finished if delivery.event.is_ordered])",
        "release_after(context, batch, [])",
        (f"{INTERLEAVINGS}::TestTheNextEvent::test_is_due_as_soon_as_the_one_before_it_is_settled",),
    ),
    Mutant(
        "order-events-that-have-waited-for-long-are-not-released",
        "outbox/delivery/followers.py",
        "if each.waits or each.event.ordering_key in batch.keys_with_waiting]",
        "if each.waits]",
        ("tests/invariants/test_i5_order.py::TestStatements",),
    ),
    Mutant(
        "order-one-that-was-parked-too-late-is-not-released",
        "outbox/delivery/followers.py",
        "        if name in delivery.waits or _has_ended(context, name, entry):",
        "        if _has_ended(context, name, entry):",
        (f"{INTERLEAVINGS}::TestTheNextEvent::test_is_due_if_the_one_before_it_ends_while_it_is_parked",),
    ),
    Mutant(
        "order-a-whole-batch-is-released-each-time",
        "outbox/delivery/followers.py",
        "min(most, 2 * ended[pair])",
        "most",
        (f"{I5}::test_where_events_are_refused_now_and_then_few_are_released_in_vain",),
    ),
    Mutant(
        "order-overlooked-events-stay-parked",
        "outbox/delivery/followers.py",
        "        released = _release_free(context, first_waiting(context.dialect, pairs)[0]) if pairs else 0",
        "        released = 0",
        (f"{ORDER}::TestOverlooked",),
    ),
    Mutant(
        "order-a-key-is-not-fed-one-by-one",
        "outbox/delivery/key_order.py",
        "            elif key in self._following:\n                self._following[key].append(delivery)",
        "            elif key in self._following:\n                self._ready.append(delivery)",
        (f"{ORDER}::TestOneKey::test_a_pipeline_gets_the_next_event_only_after_the_one_before_it", ORDER_MODEL),
    ),
    Mutant(
        "order-an-event-is-skipped-before-that-is-written",
        "outbox/delivery/share.py",
        "goes_on=next_entry.state == DELIVERED)",
        "goes_on=not next_entry.is_open)",
        (f"{ORDER}::TestFailing::test_it_is_skipped_when_that_is_written_and_not_before",),
    ),
    Mutant(
        "order-failed-events-block-where-they-are-skipped",
        "outbox/destinations/order_policy.py",
        'return getattr(destination, "on_failed", "block") == "skip"',
        "return False",
        (f"{ORDER}::TestFailing::test_a_destination_may_skip_it",),
    ),
    Mutant(
        "order-failed-events-do-not-block",
        "outbox/destinations/order_policy.py",
        'return getattr(destination, "on_failed", "block") == "skip"',
        "return True",
        (f"{ORDER}::TestFailing::test_a_failed_event_blocks_its_key_until_an_operator_retries_it", ORDER_MODEL),
    ),
    Mutant(
        "order-clean-up-deletes-what-blocks-a-key",
        OPERATIONS_SQL,
        "    AND (order_state IS NULL OR delivered_at IS NOT NULL OR (",
        "    AND (order_state IS NULL OR order_state IS NOT NULL OR (",
        (f"{ORDER}::TestFailing::test_clean_up_keeps_a_failed_event_while_others_wait_behind_it",),
    ),
    Mutant(
        "order-strict-takes-no-lock",
        "outbox/events/emit.py",
        "        self._dialect.lock_keys(",
        "        set(",
        (f"{I5}::TestStrict::test_a_second_transaction_waits_for_the_first_before_it_draws_its_number",),
    ),
    Mutant(
        "order-a-successor-does-not-know-where-events-waited",
        "outbox/delivery/ordering.py",
        "        if each != name and each not in PLACEHOLDERS and recorded.successor_of(each) == name\n",
        "        if False\n",
        (f"{INTERLEAVINGS}::TestADestinationThatIsReplacedWhileEventsWait::test_takes_over_what_failed",),
    ),
    Mutant(
        "order-a-successor-goes-by-what-its-predecessor-has",
        "outbox/delivery/ordering.py",
        "    if own is not None and not own.is_untried:",
        "    if False:",
        (f"{INTERLEAVINGS}::TestADestinationThatIsReplacedWhileEventsWait::test_by_one_that_had_the_event_as_well",),
    ),
    Mutant(
        "order-a-new-destination-gets-later-events-first",
        "outbox/destinations/recorder.py",
        "            if wants_other_types:\n",
        "            if False:\n",
        (f"{INTERLEAVINGS}::TestADestinationThatIsNewWhileEventsWait::test_gets_them_in_order",),
    ),
    Mutant(
        "order-parked-for-destinations-of-before",
        "outbox/delivery/followers.py",
        "            if outdated:\n",
        "            if False:\n",
        (
            f"{INTERLEAVINGS}::TestADestinationThatIsNewWhileEventsWait::test_gets_one_that_was_parked_before_it_was_known",
        ),
    ),
    Mutant(
        "order-a-retired-destination-keeps-events-waiting",
        "outbox/destinations/retirement.py",
        "    forget_destination(dialect, name)\n",
        "",
        (
            f"{INTERLEAVINGS}::TestADestinationThatIsReplacedWhileEventsWait::test_nothing_waits_under_the_old_name_any_more",
        ),
    ),
    Mutant(
        "order-a-slow-destination-holds-events-back-elsewhere",
        "outbox/delivery/batch.py",
        "                if delivery.event.is_ordered and len(ended) > len(delivery.written):",
        "                if False:",
        (f"{INTERLEAVINGS}::TestASlowDestination",),
    ),
    Mutant(
        "order-releasing-makes-a-replaced-event-due",
        ORDER_SQL,
        "(order_state = 'waits' OR (order_state = 'holds' AND progress IS NOT NULL))",
        "order_state IS NOT NULL",
        (f"{INTERLEAVINGS}::TestAnEventThatIsReplacedWhileItWaits::test_is_not_due_before_its_new_time",),
    ),
    Mutant(
        "order-releasing-waits-for-a-worker-that-parks",
        ORDER_SQL,
        "FOR UPDATE SKIP LOCKED\n),\nfreed",
        "\n),\nfreed",
        (f"{INTERLEAVINGS}::TestTwoTransactions",),
    ),
    Mutant(
        "order-an-event-that-cannot-be-planned-is-passed",
        "outbox/delivery/settle.py",
        "            blocks = any(map(_blocks, context.registry.wanting(delivery.event.event_type)))",
        "            blocks = False",
        (f"{INTERLEAVINGS}::TestAnEventThatCannotBePlanned::test_holds_its_key_back_when_it_has_failed",),
    ),
    Mutant(
        "order-a-skip-where-it-has-failed-lets-nothing-go-on",
        "outbox/delivery/ordering.py",
        "if entry.state == DELIVERED or entry.skipped:",
        "if entry.state == DELIVERED:",
        (f"{ORDER}::TestFailing::test_a_skip_where_it_has_failed_changes_nothing_where_it_is_still_tried",),
    ),
    Mutant(
        "order-an-event-that-was-skipped-blocks-when-it-ends",
        "outbox/delivery/settle.py",
        "and blocks and not entry.skipped)",
        "and blocks)",
        (f"{ORDER}::TestFailing::test_a_skip_where_it_has_failed_changes_nothing_where_it_is_still_tried",),
    ),
    Mutant(
        "order-a-skip-writes-what-a-worker-writes-over",
        OPERATIONS_SQL,
        "AND order_state IS NOT NULL AND (lease_until IS NULL OR lease_until <= {now})",
        "AND order_state IS NOT NULL",
        (f"{ORDER}::TestFailing::test_a_skip_leaves_an_event_alone_that_a_worker_is_delivering",),
    ),
    Mutant(
        "order-workers-put-off-what-waits-at-destinations-of-others",
        "outbox/delivery/settle.py",
        "        add_absent_waits(context, finished)",
        "        pass",
        (f"{INTERLEAVINGS}::TestWorkersWithDifferentDestinations",),
    ),
    Mutant(
        "order-clean-up-deletes-what-will-block-a-key",
        OPERATIONS_SQL,
        "            AND {is_unfinished} ORDER BY seq LIMIT 1) IS NULL)",
        "            AND {is_unfinished} AND false ORDER BY seq LIMIT 1) IS NULL)",
        (f"{ORDER}::TestFailing::test_clean_up_keeps_a_failed_event_while_no_worker_has_claimed_the_later_ones",),
    ),
    Mutant(
        "order-max-age-counts-the-wait-from-the-last-look-on",
        "outbox/storage/progress.py",
        "entry if self.since is None or self.held_since is not None else",
        "entry if self.since is None else",
        (f"{ORDER}::TestOneKey::test_max_age_does_not_count_it_though_the_event_is_looked_at_meanwhile",),
    ),
    # Jobs: their arguments never reach a destination of events
    Mutant(
        "a-job-is-replayed-to-a-destination-of-events",
        "outbox/operations/actions.py",
        "    return (OutboxEvent.kind == EVENT) & wanted",
        "    return wanted",
        (
            "tests/operations/test_jobs.py::test_a_replay_to_a_webhook_posts_no_job",
            "tests/cli/test_jobs.py::TestActions::test_a_replay_to_a_destination_never_has_a_job",
        ),
    ),
    Mutant(
        "masking-of-the-page-of-a-job",
        "outbox/admin/web/pages.py",
        "job_view(event, payload, masking)",
        "job_view(event, payload)",
        (f"{JOB_PAGES}::TestThePageOfAJob::test_shows_actor_arguments_queue_due_time_message_id_and_key",),
    ),
    Mutant(
        "masking-of-listed-jobs",
        "outbox/admin/web/pages.py",
        "listed_arguments(job, shown.get(job.id), dashboard.masking)",
        "listed_arguments(job, shown.get(job.id))",
        (f"{JOB_PAGES}::TestTheList::test_shows_jobs_as_jobs",),
    ),
    *BUSES,
    *RABBITMQ,
    *CONTROL,
    *TRUTH,
    *DASHBOARD,
    *LEAKS,
    *HANDLERS,
    *PROOFS,
    *SEVERAL_OUTBOXES,
]
