"""The demo, run as a newcomer runs it: as a process of its own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DEMO = [sys.executable, "-m", "examples.orders"]
TIMEOUT_SECONDS = 120

# One mail too many in the mail server's own books.
SABOTAGED = """
import sys
from examples.orders import services

send = services.MailServer.send

def send_and_count_twice(self, order, text):
    send(self, order, text)
    self.sent[order] += 1

services.MailServer.send = send_and_count_twice

from examples.orders.__main__ import main
sys.exit(main())
"""


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone after the block, whatever happens in it."""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def numbers(output: str, row: str) -> list[int]:
    """The numbers in a row of the summary."""
    found = re.search(rf"^ *{row}  (.*)$", output, re.MULTILINE)
    assert found is not None, output
    return [int(number) for number in re.findall(r"\d+", found[1])]


@pytest.fixture(scope="module")
def demo() -> str:
    """What it prints for 8 orders, of which the fifth is rolled back; one card times out, another is declined."""
    finished = run(*DEMO, "--orders", "8")
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


def test_the_demo_ends_by_itself_and_its_numbers_agree(demo: str) -> None:
    assert "The numbers agree." in demo
    emitted, placed, paid = numbers(demo, "emitted")
    (delivered,) = numbers(demo, "delivered")
    charges, mails, parcels = numbers(demo, "done")
    retried, timeouts, mails_turned_away = numbers(demo, "retried")
    failed, declined = numbers(demo, "failed")
    assert (emitted, placed, paid, delivered, failed, declined) == (13, 7, 6, 12, 1, 1)
    assert (charges, mails, parcels) == (6, 7, 6)
    assert timeouts == 1
    assert mails_turned_away >= 1
    assert retried == timeouts + mails_turned_away
    assert numbers(demo, "rolled back") == [1]


def test_the_demo_shows_events_while_they_are_delivered(demo: str) -> None:
    for line in (
        "order 1   placed",
        "order 1   card: charged",
        "order 1   parcel: packed",
        "order 5   card: declined",
        "rolled back: no samovar",
    ):
        assert line in demo, demo
    assert demo.index("order 4   card: the provider timed out") < demo.index("order 4   card: charged")


def test_the_demo_needs_no_server_whatever_the_environment_says() -> None:
    nowhere = {"OUTBOX_REDIS_URL": "redis://127.0.0.1:1/0", "OUTBOX_DATABASE_URL": "postgresql://127.0.0.1:1/none"}

    demo = run(*DEMO, "--orders", "1", **nowhere)

    assert demo.returncode == 0, demo.stdout


def test_numbers_that_do_not_agree_are_named_and_fail_the_demo() -> None:
    demo = run(sys.executable, "-c", SABOTAGED, "--orders", "1")

    assert demo.returncode == 1, demo.stdout
    assert "1 is not 0: things done twice = 0" in demo.stdout
    assert "The numbers agree." not in demo.stdout


def test_with_keep_it_goes_on_until_ctrl_c_and_then_ends_cleanly() -> None:
    with started(*DEMO, "--orders", "1", "--keep") as demo:
        assert demo.stdout is not None
        seen = ""
        for line in demo.stdout:
            seen += line
            if "order 2   placed" in line:  # one more than was asked for
                break
        demo.send_signal(signal.SIGINT)
        seen += demo.communicate(timeout=TIMEOUT_SECONDS)[0]

    assert demo.returncode == 0, seen
    assert "Traceback" not in seen
    emitted = numbers(seen, "emitted")  # more orders may have been placed before the signal came
    assert emitted == [2 * emitted[1], emitted[1], emitted[1]]
    assert emitted[1] >= 2
    assert "The numbers agree." in seen


def test_the_shops_own_tests_pass_with_the_test_kit() -> None:
    finished = run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "examples/orders/tests"
    )
    assert re.search(r"^5 passed", finished.stdout, re.MULTILINE), finished.stdout
