"""The archive: no event is deleted that is not in a file, as it was stored."""

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import outbox
from outbox.cli import cli
from outbox.core import Outbox
from outbox.operations.archive import ArchiveError, archive_ended, read_file
from outbox.storage.models import OutboxEvent
from outbox.storage.sql.archive import ARCHIVED
from tests.conftest import Configure
from tests.support.table import change, emit, emit_one, let_pass, statuses


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def deliver(count: int, **fields: Any) -> None:
    outbox.handler("order.placed", name="crm")(lambda event: None)
    emit(count, **fields)
    outbox.current().process_pending_events(count)
    outbox.current().registry.clear()


def archive(box: Outbox, place: Path, **options: Any) -> dict[str, int]:
    return archive_ended(box.dialect, place, 1, stopping=threading.Event(), **options)


def archived(place: Path) -> list[dict[str, Any]]:
    return [event for path in sorted(place.iterdir()) for event in read_file(path)]


def test_ended_events_are_written_and_deleted_and_no_others(box: Outbox, place: Path) -> None:
    deliver(3, payload={"größe": 1.10, "text": "a\nb"}, tenant_id="acme")
    change(emit_one("bad"), status="failed", next_attempt_at=None, error_message="no")
    let_pass(hours=2)
    deliver(1)
    emit(2)
    before = {str(event.id): event for event in OutboxEvent.select()}
    assert archive(box, place, batch_size=3) == {"deleted": 4, "remaining": 0}
    assert (len(list(place.iterdir())), sum(statuses().values())) == (2, 3)
    for event in archived(place):
        row = before[event["id"]]
        assert set(event) == {*ARCHIVED, "delivered_to"}
        assert (event["payload"], event["status"], event["tenant_id"]) == (row.payload, row.status, row.tenant_id)
        assert (event["created_at"], event["error_message"]) == (row.created_at.isoformat(), row.error_message)
        assert event["delivered_to"] == (["crm"] if row.status == "delivered" else [])
    assert archive(box, place) == {"deleted": 0, "remaining": 0}


def test_every_column_is_archived() -> None:
    assert set(ARCHIVED) == set(OutboxEvent._meta.columns)


def test_the_text_of_a_payload_is_the_stored_one(box: Outbox, place: Path) -> None:
    deliver(1, payload={"amount": "x"})
    text = '{"amount": 1.10, "of": "Kč"}'
    with box.dialect.connection():
        box.dialect.run(f"UPDATE outbox_event SET payload = '{text}'")  # noqa: S608  (text of this test)
    let_pass(hours=2)
    archive(box, place)
    (file,) = place.iterdir()
    assert text in gzip.decompress(file.read_bytes()).decode()
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("what", ["a file in its place", "a faulty disk", "a full disk"])
def test_nothing_is_deleted_without_a_file(
    box: Outbox, place: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(2)
    let_pass(hours=2)
    if what == "a file in its place":
        place.touch()
    elif what == "a faulty disk":
        compress = gzip.compress
        monkeypatch.setattr("outbox.operations.archive.gzip.compress", lambda content, mtime: compress(content[:-2]))
    else:
        monkeypatch.setattr(
            "outbox.operations.archive.os.fsync", lambda _: (_ for _ in ()).throw(OSError("No space left"))
        )
    with pytest.raises(ArchiveError, match="deleted"):
        archive(box, place)
    assert statuses() == {"delivered": 2}
    assert what == "a file in its place" or list(place.glob("outbox-*")) == []


def test_a_crash_before_the_commit_leaves_the_events_and_one_file(box: Outbox, place: Path) -> None:
    def crash(ids: object) -> None:
        raise KeyboardInterrupt

    deliver(2)
    let_pass(hours=2)
    with pytest.raises(KeyboardInterrupt):
        archive(box, place, on_deleted=crash)
    assert statuses() == {"delivered": 2}
    assert archive(box, place)["deleted"] == 2
    assert len(archived(place)) == 2


def test_the_clean_up_archives_if_a_directory_is_set(configure: Configure, place: Path) -> None:
    box = configure(archive_directory=str(place))
    deliver(2)
    let_pass(hours=2)
    assert box.cleanup_delivered_events(1) == {"deleted": 2, "remaining": 0}
    deliver(1)
    let_pass(hours=2)
    done = CliRunner().invoke(cli, ["cleanup", "--retention-hours", "1", "--yes"])
    assert done.exit_code == 0, done.output
    assert len(archived(place)) == 3


def test_the_command_archives_verifies_and_finds_what_is_damaged(box: Outbox, place: Path) -> None:
    deliver(3)
    let_pass(hours=2)
    arguments = ["archive", str(place), "--retention-hours", "1"]
    assert "3 events ended more than 1 hours ago." in CliRunner().invoke(cli, [*arguments, "--dry-run"]).output
    assert not place.exists()
    done = CliRunner().invoke(cli, [*arguments, "--yes"])
    assert f"3 events archived in {place}, and deleted." in done.output
    (entry,) = json.loads(CliRunner().invoke(cli, ["audit", "--json"]).output)
    assert (entry["action"], entry["affected"]) == ("archive", 3)
    assert CliRunner().invoke(cli, ["archive", str(place), "--verify"]).output == "1 files, 3 events, 0 damaged.\n"
    (file,) = place.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    verified = CliRunner().invoke(cli, ["archive", str(place), "--verify"])
    assert (verified.exit_code, "is damaged" in verified.output) == (1, True)
