"""Mutants of RabbitMQ: what its publisher, and the consumer of its queues, promise. They need a RabbitMQ."""

from tests.mutants.mutant import Mutant

PUBLISH = "tests/rabbitmq/test_publish.py"
CONSUME = "tests/rabbitmq/test_consume.py"

CONNECTION = "outbox/buses/rabbit_connection.py"
QUEUE = "outbox/consumer/rabbit_queue.py"
SOURCE = "outbox/consumer/rabbit_source.py"
PARKING = "outbox/consumer/parking_queue.py"

A_MESSAGE, REFUSED = f"{CONSUME}::TestAMessage", f"{PUBLISH}::TestAMessageThatIsRefused"
PARKED = f"{A_MESSAGE}::test_that_keeps_failing_is_parked_with_its_error_and_the_others_are_not_held_up[classic]"
PARKED_LATER = f"{A_MESSAGE}::test_stays_while_the_dead_letter_queue_can_not_store_it_and_is_parked_later"
CRASHED = f"{CONSUME}::TestACrash::test_counts_for_the_message_that_was_begun_and_not_for_its_neighbours[classic]"
NO_ROUTE = f"{REFUSED}::test_is_tried_again_with_the_reason_if_no_queue_gets_it_and_the_others_are_delivered"

RABBITMQ = [
    Mutant(
        "rabbitmq-what-was-returned-is-delivered",
        CONNECTION,
        '            self._result.confirmations[place] = Confirmation("returned", '
        'f"{method.reply_code} {method.reply_text}")\n',
        "            pass\n",
        (NO_ROUTE,),
    ),
    Mutant(
        "rabbitmq-what-was-rejected-is-delivered",
        CONNECTION,
        "        confirmation = CONFIRMED if isinstance(frame.method, pika.spec.Basic.Ack) else REJECTED\n",
        "        confirmation = CONFIRMED\n",
        (f"{REFUSED}::test_waits_while_a_queue_is_full",),
    ),
    Mutant(
        "rabbitmq-messages-end-with-the-server",
        CONNECTION,
        "PERSISTENT = 2\n",
        "PERSISTENT = 1\n",
        (f"{PUBLISH}::TestAMessage::test_has_the_attributes_as_headers_and_the_payload_to_the_byte",),
    ),
    Mutant(
        "rabbitmq-a-batch-fails-for-one-message",
        "outbox/buses/rabbit.py",
        "            for each in unconfirmed:\n"
        "                yield from self._confirmed(connection, [each], ends_at)\n",
        "            yield from ((event, Failed(str(refusal))) for event, _ in unconfirmed)\n",
        (f"{REFUSED}::test_fails_if_it_is_too_large_and_the_others_are_delivered",),
    ),
    Mutant(
        "rabbitmq-frames-by-themselves",
        CONNECTION,
        "        with self._channel.connection.collecting():\n",
        "        with contextlib.nullcontext():\n",
        (f"{PUBLISH}::TestABatch::test_is_written_at_once_and_not_frame_by_frame",),
    ),
    Mutant(
        "rabbitmq-frames-stay-collected",
        "outbox/buses/rabbit_writes.py",
        "        finally:\n            self._write_collected()\n",
        "        finally:\n",
        (f"{PUBLISH}::TestAMessage::test_has_the_attributes_as_headers_and_the_payload_to_the_byte",),
    ),
    Mutant(
        "rabbitmq-consumer-acknowledges-before-the-commit",
        SOURCE,
        "        received = queue.take(self._options.read_count, seconds)\n",
        "        received = queue.take(self._options.read_count, seconds)\n"
        "        queue.settle([each.tag for each in received])\n",
        (CRASHED,),
        also=((SOURCE, "settle([each.received.tag for each in acknowledged], [", "settle([], ["),),
    ),
    Mutant(
        "rabbitmq-consumer-never-parks",
        SOURCE,
        "                    again = min(deliveries + 1, most)\n",
        "                    again = min(deliveries, most)\n",
        (PARKED,),
    ),
    Mutant(
        "rabbitmq-consumer-forgets-that-it-is-delivered-again",
        SOURCE,
        "is_redelivered=received.is_redelivered, error=error",
        "is_redelivered=False, error=error",
        (CRASHED,),
    ),
    Mutant(
        "rabbitmq-consumer-acknowledges-before-it-parks",
        SOURCE,
        "            self._parking.add(message.received, error, entry.deliveries)\n"
        "        self._settle(acknowledged=found)\n",
        "            self._settle(acknowledged=[message])\n"
        "            self._parking.add(message.received, error, entry.deliveries)\n",
        (PARKED_LATER,),
    ),
    Mutant(
        "rabbitmq-consumer-parks-without-a-confirmation",
        PARKING,
        '        if confirmation is None or confirmation.kind != "confirmed":\n',
        "        if False:\n",
        (PARKED_LATER,),
    ),
    Mutant(
        "rabbitmq-consumer-parks-where-there-is-no-queue",
        PARKING,
        "properties, mandatory=True)",
        "properties, mandatory=False)",
        (f"{A_MESSAGE}::test_stays_while_there_is_no_dead_letter_queue_and_is_parked_later",),
    ),
    Mutant(
        "rabbitmq-consumer-that-stops-drops-what-it-has-not-begun",
        QUEUE,
        "            self._channel.close()\n            await closed\n",
        "            self._channel.basic_ack(0, multiple=True)\n"
        "            self._channel.close()\n            await closed\n",
        (f"{CONSUME}::TestStopping::test_finishes_what_was_read_and_gives_the_rest_back",),
    ),
    Mutant(
        "rabbitmq-consumer-that-stops-drops-what-it-has-begun",
        "outbox/consumer/consumer.py",
        "            counted, outcome = self._processor.process(entry)\n",
        "            counted, outcome = self._processor.process(entry)\n"
        "            if stopped.is_set():\n"
        "                outcomes += [(each, outcome) for each in remaining]\n",
        (f"{CONSUME}::TestStopping::test_finishes_what_was_read_and_gives_the_rest_back",),
    ),
    Mutant(
        "rabbitmq-consumer-acknowledges-messages-of-a-lost-connection",
        SOURCE,
        "        self._messages.clear()\n",
        "",
        (f"{A_MESSAGE}::test_of_a_connection_that_was_lost_is_not_taken_for_one_of_the_next_connection",),
    ),
    Mutant(
        "rabbitmq-consumer-returns-nothing-before-rabbitmq-loses-patience",
        SOURCE,
        "returned=[each for each in due if now - each.received_at > MOST_SECONDS]",
        "returned=[]",
        (f"{CONSUME}::TestManyMessagesThatFail::test_are_given_back_before_rabbitmq_loses_patience",),
    ),
]
