"""Whatever stands on a command line: the command does it, or says in a line of ours why not."""

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from outbox.cli import cli
from outbox.core import Outbox
from outbox.errors import OutboxError
from tests.admin.web.sample import delivered, failed, waiting
from tests.fuzz.anything import NASTY_TEXTS
from tests.support.thoroughness import thorough

# No argument of a process can hold a NUL; bytes that are no UTF-8 become lone surrogates.
words = (
    st.sampled_from(NASTY_TEXTS)
    | st.text(st.characters(), max_size=20)
    | st.sampled_from(
        [
            "failed",
            "2h",
            "1e9w",
            "999999999w",
            "0s",
            "2026-01-31",
            "0001-01-01",
            "9999-12-31T23:59-23:59",
            "a:b",
            ":",
            "1",
        ]
    )
).filter(lambda text: "\x00" not in text)
FILTERS = [
    "--status", "--type", "--aggregate", "--tenant", "--destination", "--error", "--key", "--correlation",
    "--older-than", "--newer-than", "--since", "--until",
]  # fmt: skip
COMMANDS = {
    "list": ([], ["--after", "--limit"]),
    "retry": (["--yes"], ["--limit"]),
    "fail": (["--yes"], ["--reason", "--limit"]),
    "delete": (["--dry-run"], []),
    "replay": (["--yes"], ["--to"]),
}
lines = st.sampled_from(sorted(COMMANDS)).flatmap(
    lambda name: st.tuples(
        st.just([name, *COMMANDS[name][0]]),
        st.lists(st.tuples(st.sampled_from(FILTERS + COMMANDS[name][1]), words), max_size=3),
        st.sampled_from([[], ["--all"]]) if name != "list" else st.sampled_from([[], ["--json"]]),
    )
)


@pytest.fixture
def some(box: Outbox) -> Outbox:
    failed(), delivered(), waiting()
    return box


def run(*arguments: str) -> tuple[int, str]:
    """As `outbox.cli.main` has it: our own errors are a line, and any other is a bug."""
    try:
        done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    except OutboxError as error:
        return 2, str(error)
    return done.exit_code, done.output


@thorough(150)
@given(line=lines)
def test_any_filter_is_followed_or_refused(
    some: Outbox, line: tuple[list[str], list[tuple[str, str]], list[str]]
) -> None:
    command, options, flags = line
    code, said = run(*command, *(part for option in options for part in option), *flags)
    assert code in (0, 1, 2)
    assert code == 0 or said
    # Whatever it did, the table can be read by any filter.
    assert run("list", "--destination", "webhook", "--limit", "1000")[0] == 0


@thorough(100)
@given(line=st.lists(words, min_size=3, max_size=4), key=words, header=words)
def test_an_event_emitted_by_hand_is_stored_or_refused(some: Outbox, line: list[str], key: str, header: str) -> None:
    code, said = run("emit", "--key", key, "--header", header, "--", *line)
    assert code in (0, 2)
    assert said


@thorough(60)
@given(id=words)
def test_any_id_is_shown_or_refused(some: Outbox, id: str) -> None:
    code, said = run("show", "--", id)
    assert code in (0, 1, 2)
    assert said


@pytest.mark.parametrize("option", ["--since", "--until"])
@pytest.mark.parametrize("moment", ["0001-01-01", "9999-12-31T23:59"])
def test_either_end_of_the_calendar_is_a_time_like_any_other(some: Outbox, option: str, moment: str) -> None:
    code, said = run("list", option, moment, "--json")
    is_listed = (option, moment[:4]) in [("--since", "0001"), ("--until", "9999")]
    assert (code, '"events": []' not in said) == (0, is_listed)


@thorough(50)
@given(action=st.sampled_from(["run", "pause", "resume", "forget"]), name=words)
def test_a_periodic_job_of_any_name_is_found_or_named_as_missing(some: Outbox, action: str, name: str) -> None:
    code, said = run("periodic", action, "--", name)
    assert code == 2
    assert "There is no periodic job called" in said
