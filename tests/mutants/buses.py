"""Mutants of message brokers: what their connections and confirmations rest on."""

from tests.mutants.mutant import Mutant

BUS = "tests/buses/test_bus.py"
KAFKA = "tests/buses/test_kafka.py"

DELIVERY_COUNT = "outbox/consumer/delivery_count.py"
COUNTED = "tests/consumer/test_delivery_count.py"

BUSES = [
    Mutant(
        "bus-unconfirmed-keeps-its-connection",
        "outbox/buses/bus.py",
        "            if unconfirmed:\n                self._shared.discard(connection)\n",
        "",
        (f"{BUS}::TestWhatIsNotConfirmed::test_is_unavailable_and_the_next_batch_has_a_new_connection",),
    ),
    Mutant(
        "bus-unconfirmed-is-delivered",
        "outbox/buses/bus.py",
        'missing = Unavailable(f"not confirmed within {seconds:.3g} s")',
        "missing = DELIVERED_OUTCOME",
        (f"{BUS}::TestWhatIsNotConfirmed::test_costs_no_attempt_and_is_published_again",),
        also=(
            (
                "outbox/buses/bus.py",
                "from outbox.destinations.outcome import Delivered, Failed",
                "from outbox.destinations.outcome import DELIVERED_OUTCOME, Delivered, Failed",
            ),
        ),
    ),
    Mutant(
        "bus-child-uses-its-parents-connection",
        "outbox/buses/shared_connection.py",
        "        each.leave_to_parent()\n",
        "        each._lock = threading.Lock()\n",
        (f"{BUS}::TestTheConnection::test_of_the_parent_is_not_touched_by_a_forked_child",),
    ),
    Mutant(
        "bus-lock-is-inherited",
        "outbox/buses/shared_connection.py",
        "os.register_at_fork(after_in_child=_after_fork_in_child)\n",
        "",
        (
            f"{BUS}::TestTheConnection::test_can_be_opened_in_a_child_that_was_forked_while_a_thread_was_connecting",
            f"{BUS}::TestTheConnection::test_of_the_parent_is_not_touched_by_a_forked_child",
        ),
    ),
    Mutant(
        "bus-thread-closes-anothers-connection",
        "outbox/buses/shared_connection.py",
        "            if connection is self._connection:\n                self._forget(connection)\n",
        "            if self._connection is not None:\n                self._forget(self._connection)\n",
        (f"{BUS}::TestTheConnection::test_of_another_thread_is_not_closed_when_an_older_one_has_failed",),
    ),
    Mutant(
        "bus-inherited-connection-is-deleted",
        "outbox/buses/shared_connection.py",
        "            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))\n",
        "            pass\n",
        (f"{BUS}::TestTheConnection::test_of_the_parent_is_never_deleted_in_a_forked_child",),
    ),
    Mutant(
        "kafka-report-with-an-error-is-delivered",
        "outbox/buses/kafka_connection.py",
        "            self.results[place] = None if error is None else KafkaException(error)\n",
        "            self.results[place] = None\n",
        (f"{KAFKA}::TestAMessageThatIsRefused::test_has_the_outcome_of_the_brokers_error",),
    ),
    Mutant(
        "kafka-setting-is-quoted",
        "outbox/buses/kafka_connection.py",
        'or its value") from None',
        'or its value: {error}") from None',
        (f"{KAFKA}::TestParameters::test_that_librdkafka_refuses_are_named_without_their_value",),
    ),
    Mutant(
        "bus-passwords-in-errors",
        "outbox/buses/bus.py",
        "            yield event, self._without_secrets(outcome)",
        "            yield event, outcome",
        (f"{BUS}::TestSecrets",),
    ),
    Mutant(
        "kafka-passwords-in-the-log",
        "outbox/buses/kafka_connection.py",
        "visible(self._redact(message % args if args else message))",
        "visible(message % args if args else message)",
        (f"{KAFKA}::TestParameters::test_are_not_in_what_librdkafka_logs",),
    ),
    Mutant(
        "kafka-a-batch-fails-for-one-message",
        "outbox/buses/kafka.py",
        "    for place in refused if len(batch) > 1 else ():\n",
        "    for place in ():\n",
        (
            f"{KAFKA}::TestAMessageThatIsRefused::test_fails_alone_though_the_broker_refuses_the_whole_batch_that_it_is_in",
        ),
    ),
    Mutant(
        "consumers-a-crash-is-not-counted",
        DELIVERY_COUNT,
        "            deliveries = max(self._rows(event, queue), self._first_with_row - 1) + 1\n",
        "            deliveries = self._first_with_row\n",
        (f"{COUNTED}::test_each_further_delivery_has_a_row_until_there_are_enough",),
    ),
    Mutant(
        "consumers-an-outage-is-counted",
        DELIVERY_COUNT,
        "            self._run(statement, event, _name(entry.deliveries, entry.counted_for))\n",
        "            pass\n",
        (f"{COUNTED}::test_one_that_does_not_count_is_taken_back",),
    ),
    Mutant(
        "consumers-a-message-that-was-only-fetched-is-parked",
        DELIVERY_COUNT,
        "1 if max_deliveries == 1 else 2",
        "2",
        (f"{COUNTED}::test_if_only_one_is_allowed_the_first_has_a_row",),
    ),
    Mutant(
        "consumers-envelopes-of-any-size",
        "outbox/consumer/message_fields.py",
        "    if len(body) > most:\n",
        "    if False:\n",
        ("tests/consumer/test_message_fields.py::test_another_message_is_refused",),
    ),
    Mutant(
        "consumers-a-payload-is-encoded-again",
        "outbox/consumer/message_fields.py",
        "        members[name] = text[start:end]\n",
        "        members[name] = json.dumps(json.loads(text[start:end]))\n",
        ("tests/consumer/test_message_fields.py::test_the_payload_in_an_envelope_stays_as_it_was_written",),
    ),
]
