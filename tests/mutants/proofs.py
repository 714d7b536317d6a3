"""What proofs of handlers rest on."""

from tests.mutants.mutant import Mutant

PROVE = "tests/testing/test_prove.py"
PROOF = "outbox/testing/proof"

PROOFS = [
    Mutant(
        "proof-a-kill-is-an-exception",
        f"{PROOF}/call_process.py",
        "            os.kill(os.getpid(), signal.SIGKILL)\n        if self",
        "            self._kill_after = None\n        if self",
        (f"{PROVE}::TestWhatAHandlerBears::test_a_mark_that_is_not_in_the_same_transaction_is_not_reached",),
    ),
    Mutant(
        "proof-the-second-call-runs-when-the-first-has-ended",
        f"{PROOF}/call_process.py",
        "        if self._number == self._wait_after:",
        "        if self._number == -1:",
        (f"{PROVE}::TestWhatAHandlerBears::test_a_look_before_the_insert_does_not_see_another_call",),
    ),
    Mutant(
        "proof-another-file-is-opened",
        f"{PROOF}/trace_drivers.py",
        "            check(name)\n        connection = connect(",
        "            pass\n        connection = connect(",
        (f"{PROVE}::TestWhatIsRefused::test_another_database_is_refused",),
    ),
    Mutant(
        "proof-another-file-is-attached",
        f"{PROOF}/trace_drivers.py",
        "    return sqlite3.SQLITE_DENY if is_refused else sqlite3.SQLITE_OK",
        "    return sqlite3.SQLITE_OK",
        (f"{PROVE}::TestWhatIsRefused::test_another_database_is_refused",),
    ),
    Mutant(
        "proof-a-host-is-called",
        f"{PROOF}/outside_calls.py",
        "        if not self._allowed:",
        "        if self._allowed:",
        (f"{PROVE}::TestWhatIsRefused::test_a_call_to_a_host_is_refused_and_reported",),
    ),
    Mutant(
        "proof-copies-are-left-behind",
        f"{PROOF}/copies.py",
        "                original.close()",
        "                pass",
        (f"{PROVE}::test_copies_are_dropped_after_an_interrupt",),
    ),
    Mutant(
        "proof-an-attempt-that-does-nothing-is-not-compared",
        f"{PROOF}/scenarios.py",
        "        if has_same_shape(self._once, second):",
        "        if second is not None:",
        (f"{PROVE}::TestTheComparison::test_a_handler_that_trusts_its_first_attempt_is_killed_before_it",),
    ),
]
