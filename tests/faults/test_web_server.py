"""A real web server that emits: how its end looks to operators."""

import signal
from datetime import timedelta

from outbox.admin.overview import overview
from outbox.admin.verdict import find, verdict_on
from outbox.storage.operator_models import Process
from outbox.telemetry.process_reports import APPLICATION
from tests.support.processes import Stage
from tests.support.serving import port_of, post, serve


def test_one_that_is_stopped_with_sigterm_is_gone_and_nothing_is_wrong_with_it(stage: Stage) -> None:
    def applications() -> list[int]:
        return [each.pid for each in overview(stage.box.dialect).processes if each.kind == APPLICATION]

    server = serve(stage, "uvicorn", "tests.apps.emitting_web")
    assert post(port_of(server), "/", b"", {})[0] == 200
    stage.wait_for(lambda: len(applications()) == 1, "the web server has reported")
    server.signal(signal.SIGTERM)
    server.wait()
    # Whether it could still remove its row or not: a minute later it is gone.
    with stage.box.dialect.connection():
        earlier = {"seen_at": stage.box.dialect.now() - timedelta(minutes=1)}
        stage.box.dialect.execute(Process.update(**earlier).where(Process.kind == APPLICATION))
    assert applications() == []
    view = overview(stage.box.dialect)
    assert "silent" not in verdict_on(find(stage.box, view)).sentence
    assert [each for each in find(stage.box, view) if "silent" in each.what] == []
