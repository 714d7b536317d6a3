"""Encrypted rows with real processes: workers with other keys, a rotation under load, a killed re-encryption."""

import hashlib
from collections import Counter
from uuid import UUID

import pytest

import outbox
from outbox.core import Outbox
from outbox.storage.models import PENDING, OutboxEvent
from outbox.telemetry import audit
from tests.support.encryption import NEW, OLD, texts, with_keys
from tests.support.processes import BIN, Emitter, MakeStage, Stage

KEYS = "OUTBOX_ENCRYPTION_KEYS"
PAYLOAD = b'{"do":"pass"}'
NUMBER = 1_000


def emit(box: Outbox, number: int) -> list[UUID]:
    with box.dialect.connection():
        events = [("Thing", n, "test.emitted", {"do": "pass"}) for n in range(number)]
        return [event.id for event in box.emit_many(events, on_duplicate="replace")]


def make_all_due(stage: Stage) -> None:
    """What waits for another worker is due now: which worker claims it is chance."""
    with stage.box.dialect.connection():
        stage.box.dialect.run(
            "UPDATE outbox_event SET next_attempt_at = now(), progress = NULL WHERE status = 'pending'"
        )


def encrypted_rows(box: Outbox) -> int:
    return sum(payload.startswith('{"outbox_encrypted": "v1:') for payload, _ in texts(box))


def test_a_worker_without_the_key_leaves_the_events_to_one_that_has_it(make_stage: MakeStage) -> None:
    stage = make_stage()
    ids = emit(with_keys(stage.box, NEW.text), 5)
    stage.scheduler()
    stage.worker()  # it has no keys
    stage.wait_for(
        lambda: all(f"the key {NEW.id}" in str(error) for (error,) in stage.rows("error_message")), "all are put off"
    )
    assert stage.rows("status", "attempts") == [(PENDING, 0)] * 5
    plain = stage.emit(3)
    stage.wait_for(lambda: set(stage.ended()) == set(plain), "it delivers the others")

    stage.environment[KEYS] = NEW.text
    stage.worker()

    def all_are_delivered() -> bool:
        make_all_due(stage)
        return set(stage.statuses()) == {"delivered"}

    stage.wait_for(all_are_delivered, "the worker with the key delivers them")
    assert Counter(stage.ended()) == Counter([*ids, *plain])
    assert {entry.body for entry in stage.entries("ended")} == {hashlib.sha256(PAYLOAD).hexdigest()}


def test_keys_are_rotated_under_load_and_nothing_is_lost_or_doubled(make_stage: MakeStage) -> None:
    stage = make_stage(encryption_keys=OLD.text, lease_seconds=2)
    stage.scheduler()
    first = stage.worker()
    emitter = Emitter(stage)
    emitter.wait_for_more(30)

    # The new key is known to the workers before anything is encrypted with it.
    stage.environment[KEYS] = f"{OLD.text} {NEW.text}"
    second = stage.worker()
    first.kill()
    emitter.wait_for_more(30)
    assert emitter.stop() == 0
    committed = emitter.committed()

    (stage.folder / "stop-emitting").unlink()
    (stage.folder / "committed").unlink()
    stage.environment[KEYS] = f"{NEW.text} {OLD.text}"
    emitter = Emitter(stage)
    emitter.wait_for_more(30)
    done = stage.start("reencrypt", BIN / "outbox", "reencrypt", "--yes")
    assert done.wait() in {0, 1}, done.said()  # 1: a worker was delivering some of them
    assert emitter.stop() == 0
    committed += emitter.committed()
    stage.wait_until_all("delivered")
    again = stage.start("reencrypt", BIN / "outbox", "reencrypt", "--yes")
    assert again.wait() == 0, again.said()

    # From here on nobody needs the old key.
    second.kill()
    stage.environment[KEYS] = NEW.text
    stage.worker()
    with stage.box.dialect.connection():
        stage.box.dialect.run(
            "UPDATE outbox_event SET status = 'pending', delivered_at = NULL, next_attempt_at = now() "
            "WHERE id = ANY(%s)",
            (committed[:10],),
        )
    stage.wait_for(lambda: len(stage.ended()) >= len(committed) + 10, "old rows are delivered again with the new key")
    times = Counter(stage.ended())
    assert set(times) == set(committed)
    assert times.total() - len(committed) - 10 <= 100  # of the batch that the first worker had when it was killed
    assert {entry.body for entry in stage.entries("ended")} == {hashlib.sha256(PAYLOAD).hexdigest()}
    assert not any(OLD.id in payload for payload, _ in texts(stage.box))


def test_a_reencryption_that_is_killed_leaves_every_row_readable_and_is_run_again(
    make_stage: MakeStage, url: str
) -> None:
    stage = make_stage(database_url=url, encryption_keys=NEW.text)
    box = with_keys(stage.box, NEW.text)
    emit(with_keys(stage.box), NUMBER)
    killed = stage.start("reencrypt", BIN / "outbox", "reencrypt", "--yes", "--per-second", "500")
    stage.wait_for(lambda: encrypted_rows(stage.box) >= 200, "it has changed some rows")
    killed.kill()
    assert 200 <= encrypted_rows(stage.box) < NUMBER
    (entry,) = audit.latest(stage.box.dialect)
    assert (entry.action, entry.affected, entry.ended_at) == ("reencrypt", encrypted_rows(stage.box), None)
    assert_readable(box)

    again = stage.start("reencrypt", BIN / "outbox", "reencrypt", "--yes")
    assert again.wait() == 0, again.said()
    assert encrypted_rows(stage.box) == NUMBER
    assert_readable(box)


def assert_readable(box: Outbox) -> None:
    with box.dialect.connection():
        rows = box.dialect.select(OutboxEvent.select())
    assert len(rows) == NUMBER
    assert all(box.decrypted(row).payload == {"do": "pass"} for row in rows)


@pytest.mark.parametrize("program", [["dramatiq", "jobs", "tests.apps.ledger", "-p", "1"], ["outbox", "doctor"]])
def test_a_process_with_an_invalid_key_does_not_start_and_does_not_show_it(
    make_stage: MakeStage, program: list[str]
) -> None:
    stage = make_stage()
    stage.environment[KEYS] = f"{NEW.text} {OLD.text[:-4]}"
    refused = stage.start("refused", BIN / program[0], *program[1:])
    stage.wait_for(lambda: "OUTBOX_ENCRYPTION_KEYS must be keys of 32 random bytes" in refused.said(), "it is refused")
    refused.kill()
    assert NEW.text not in refused.said()
    assert OLD.text[:-4] not in refused.said()
    assert not outbox.current_outbox.is_configured()
