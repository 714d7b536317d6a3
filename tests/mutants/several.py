"""What several outboxes in a process rest on."""

from tests.mutants.mutant import Mutant

SEVERAL = "tests/dramatiq/test_several_outboxes.py"

SEVERAL_OUTBOXES = [
    Mutant(
        "several-a-handler-finds-the-default-outbox",
        "outbox/current_outbox.py",
        "around_calls=lambda: using(box))",
        "around_calls=lambda: using(None))",
        (f"{SEVERAL}::TestUsing::test_a_handler_finds_the_outbox_whose_event_it_handles",),
    ),
    Mutant(
        "several-a-message-names-no-outbox",
        "outbox/dramatiq/actors.py",
        "        with using(outbox):\n            deliver(broker)",
        "        with using(None):\n            deliver(broker)",
        (f"{SEVERAL}::TestAWorker::test_delivers_and_cleans_up_for_the_outbox_that_a_message_names",),
    ),
    Mutant(
        "several-a-message-waits-for-the-default-database",
        "outbox/dramatiq/middleware.py",
        "        if is_outbox_actor(message.actor_name) and message.actor_name not in (DELIVER, CLEANUP):",
        "        if not message.actor_name:",
        (f"{SEVERAL}::TestAWorker::test_no_message_of_a_named_outbox_waits_for_the_default_database",),
    ),
    Mutant(
        "several-a-command-goes-on-with-the-outbox-of-the-one-before",
        "outbox/current_outbox.py",
        "        _selected = before",
        "        pass",
        ("tests/cli/test_outbox_option.py::test_chooses_the_outbox_of_one_command",),
    ),
]
