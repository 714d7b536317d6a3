"""The metrics for Prometheus, and the Grafana dashboard, alert rules and documentation that use them."""

import json
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import peewee
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

import outbox
from outbox.admin.metrics import COUNTERS, Collector, exposition
from outbox.admin.overview import BACKLOG_CAP
from outbox.cli import cli
from outbox.core import Outbox
from outbox.delivery.settle import give_back
from outbox.errors import SchemaError
from outbox.operations import controls
from outbox.storage.dialect import Dialect
from outbox.telemetry.audit import Operator
from outbox.telemetry.counters import BUCKETS
from outbox.telemetry.process_reports import SCHEDULER, WORKER
from tests.conftest import Configure
from tests.support.metrics import families, samples, value
from tests.support.periodic import change_job, declare, declared, scheduler
from tests.support.processes import MakeStage, make_stage
from tests.support.program import BIN, ROOT, run, run_python
from tests.support.table import another, change, claimed, emit, emit_one, expire_leases, let_pass, on_postgres

__all__ = ["make_stage"]

DOCS = ROOT / "docs" / "reference"


@pytest.mark.parametrize(("counted", "name"), [(counted, name) for counted, (name, _) in COUNTERS.items()])
def test_a_count_is_exposed_as_the_sum_of_all_processes(box: Outbox, counted: str, name: str) -> None:
    assert value(box, f"{name}_total") == 0
    for each in (box, another(box)):
        each.counters.add(**{counted: 3})
        each.reporter.report_now()
    assert value(box, f"{name}_total") == 6
    assert families(box)[name].type == "counter"


def test_emitted_delivered_retried_and_failed_events_are_counted(configure: Configure) -> None:
    box = configure(max_attempts=1)

    @outbox.handler("order.*", name="h")
    def handle(event: outbox.Event) -> None:
        match event.event_type:
            case "order.refused":
                raise ValueError
            case "order.away":
                raise outbox.Unavailable("away")

    emit(5)
    emit(2, "order.refused")
    emit(1, "order.away")
    outbox.emit("Order", 1, "order.once")
    with pytest.raises(outbox.DuplicateEvent):
        outbox.emit("Order", 1, "order.once")
    box.process_pending_events()
    for _ in range(2):
        with box.inbox.claim("message", "h"):
            pass
    box.reporter.report_now()
    found = samples(box)
    expected = {"emitted": 9, "claimed": 9, "delivered": 6, "failed": 2, "retried": 1, "duplicates": 1, "fenced": 0}
    for name, count in expected.items():
        assert found[f"outbox_{name}_total", frozenset()] == count
    assert found["outbox_inbox_skipped_total", frozenset()] == 1
    for outcome, count in {"delivered": 6, "retry": 2, "unavailable": 1, "failed": 0}.items():
        labels = frozenset({"destination": "h", "outcome": outcome}.items())
        assert found["outbox_outcomes_total", labels] == count
    assert found["outbox_latency_seconds_count", frozenset()] == 6
    assert found["outbox_send_seconds_count", frozenset({"destination": "h"}.items())] == 9
    assert found["outbox_failed_events", frozenset()] == 2
    assert found["outbox_pending_events", frozenset()] == 1


def test_released_events_and_fenced_outcomes_are_counted(box: Outbox) -> None:
    emit(1)
    give_back(box.delivery, claimed(box))
    late = claimed(box)
    expire_leases()
    claimed(another(box))
    give_back(box.delivery, late)
    box.reporter.report_now()
    assert (value(box, "outbox_released_total"), value(box, "outbox_fenced_total")) == (1, 1)


def test_buckets_are_cumulative(box: Outbox) -> None:
    box.counters.observe("latency", [0.001, 0.005, 0.3, 0.4, 100_000.0])
    box.counters.observe("send", [2.0], destination='a"\\\n')
    box.reporter.report_now()
    family = families(box)["outbox_latency_seconds"]
    assert family.type == "histogram"
    buckets = [(sample.labels["le"], sample.value) for sample in family.samples if sample.name.endswith("_bucket")]
    counts = [count for _, count in buckets]
    assert [float(bucket) for bucket, _ in buckets] == [float(bucket) for bucket in BUCKETS]
    assert counts == sorted(counts)
    assert (dict(buckets)["0.005"], dict(buckets)["0.5"], dict(buckets)["+Inf"]) == (2, 4, 5)
    assert value(box, "outbox_latency_seconds_count") == 5
    assert value(box, "outbox_latency_seconds_sum") == pytest.approx(100_000.706)
    assert value(box, "outbox_send_seconds_bucket", destination='a"\\\n', le="1") == 0
    assert value(box, "outbox_send_seconds_bucket", destination='a"\\\n', le="2.5") == 1


def test_gauges_are_the_state_of_the_table(configure: Configure) -> None:
    box = configure()
    held = emit(3)
    claimed(box)
    let_pass(seconds=10)
    change(*held, lease_until=held[0].created_at + timedelta(hours=1))
    left = emit(1)
    claimed(box)
    expire_leases(*left)
    emit(4)
    emit(2, deliver_after=timedelta(hours=1))
    failed = emit(5)
    change(*failed, status="failed", next_attempt_at=None)
    assert value(box, "outbox_in_flight_events") == 3
    assert value(box, "outbox_expired_leases") == 1
    assert value(box, "outbox_due_events") == 5
    assert value(box, "outbox_pending_events") == 7
    assert value(box, "outbox_failed_events") == 5
    assert value(box, "outbox_oldest_pending_seconds") >= 10
    assert 0 < value(box, "outbox_oldest_due_seconds") < 10


def test_the_gauges_of_an_empty_outbox_are_0(box: Outbox) -> None:
    found = samples(box)
    names = ("pending_events", "due_events", "failed_events", "oldest_pending_seconds", "oldest_due_seconds")
    assert [found[f"outbox_{name}", frozenset()] for name in names] == [0] * 5
    assert value(box, "outbox_up") == 1


def test_destinations_are_exposed_before_they_are_used_and_breakers_while_a_worker_reports_them(box: Outbox) -> None:
    outbox.handler("*", name="h")(lambda event: None)
    box.reporter.kind = WORKER
    open_one = {"h": {"open": True, "trips": 1, "seconds": 5.0, "error": "away"}}
    with mock.patch.object(box.throttles, "breakers", return_value=open_one):
        box.reporter.report_now()
    assert value(box, "outbox_outcomes_total", destination="h", outcome="delivered") == 0
    assert value(box, "outbox_send_seconds_count", destination="h") == 0
    assert value(box, "outbox_breaker_open", destination="h") == 1
    box.reporter.report_now()
    assert value(box, "outbox_breaker_open", destination="h") == 0


def test_processes_are_counted_while_they_report(box: Outbox) -> None:
    for kind in (WORKER, WORKER, SCHEDULER):
        process = another(box)
        process.reporter.kind = kind
        process.reporter.report_now()
    counted = {kind: value(box, "outbox_processes", kind=kind) for kind in (WORKER, SCHEDULER, "up", "application")}
    assert counted == {WORKER: 2, SCHEDULER: 1, "up": 0, "application": 0}
    box.dialect.run("UPDATE outbox_process SET seen_at = '2020-01-01 00:00:00.000000+00:00'")
    assert value(box, "outbox_processes", kind=WORKER) == 0


def test_capped_gauges_say_so(box: Outbox) -> None:
    for name, family in families(box).items():
        if name.endswith("_events") or name == "outbox_expired_leases":
            assert f"counted up to {BACKLOG_CAP:,}" in family.documentation


# An application's own registry


def test_a_collector_works_beside_other_metrics(box: Outbox) -> None:
    with mock.patch.object(Dialect, "connection", side_effect=AssertionError("registering must not ask the database")):
        registry = CollectorRegistry()
        registry.register(Collector(box))
    assert generate_latest(registry) == exposition(box)[0]
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(Collector(box))


def test_a_collector_without_a_database_exposes_up_0_only(box: Outbox) -> None:
    registry = CollectorRegistry()
    registry.register(Collector(box))
    with mock.patch.object(box.database, "connect", side_effect=peewee.OperationalError("away")):
        body = generate_latest(registry).decode()
        for_a_route = exposition(box)[0].decode()
    assert body == for_a_route
    assert [line for line in body.splitlines() if not line.startswith("#")] == ["outbox_up 0.0"]


# The command, and the extra


def test_the_command_prints_metrics_that_can_be_parsed_and_replaces_files_atomically(
    box: Outbox, url: str, tmp_path: Path
) -> None:
    emit(3)
    box.reporter.report_now()
    printed = run(BIN / "outbox", "metrics", database_url=url)
    assert printed.returncode == 0, printed.stdout
    names = {family.name for family in text_string_to_metric_families(printed.stdout)}
    assert names == set(families(box))
    file = tmp_path / "folder" / "outbox.prom"
    file.parent.mkdir()
    file.write_text("before")
    assert run(BIN / "outbox", "metrics", "--output", file, database_url=url).stdout == ""
    assert "outbox_emitted_total 3.0" in file.read_text()
    assert list(file.parent.iterdir()) == [file]


def test_while_the_database_can_not_be_read_the_command_writes_up_0_and_says_why(tmp_path: Path) -> None:
    file = tmp_path / "outbox.prom"
    file.write_text("outbox_up 1.0\n")
    url = f"sqlite:///{tmp_path / 'missing' / 'outbox.db'}"
    done = CliRunner().invoke(cli, ["metrics", "--output", str(file)], env={"OUTBOX_DATABASE_URL": url})
    assert isinstance(done.exception, SchemaError)
    assert "outbox_up 0.0" in file.read_text()


def test_without_tables_the_command_says_what_to_do(sqlite_url: str) -> None:
    done = run(BIN / "outbox", "metrics", database_url=sqlite_url)
    assert done.returncode == 2
    assert "outbox init" in done.stdout


def test_without_the_extra_the_error_says_what_to_install(sqlite_url: str) -> None:
    code = """
import sys
sys.modules["prometheus_client"] = None
import outbox
assert "outbox.admin.metrics" not in sys.modules
from outbox.cli import main
sys.argv = ["outbox", "metrics"]
main()
"""
    done = run(sys.executable, "-c", code, database_url=sqlite_url)
    assert (done.returncode, done.stdout) == (
        2,
        "outbox: Metrics need prometheus-client: pip install 'dramatiq-outbox[metrics]'.\n",
    )


def test_the_library_imports_no_prometheus() -> None:
    assert run_python("import sys, outbox, outbox.cli; print('prometheus_client' in sys.modules)") == "False\n"


def test_another_process_exposes_the_metrics_of_real_workers(make_stage: MakeStage) -> None:
    stage = make_stage(publish_seconds=0.1)
    stage.worker(processes=2)
    stage.scheduler()
    stage.emit(100)
    stage.wake()
    stage.wait_for(lambda: value(stage.box, "outbox_delivered_total") == 100, "all are counted as delivered")
    stage.wait_for(lambda: value(stage.box, "outbox_processes", kind=WORKER) == 2, "both workers are seen")
    stage.wait_for(lambda: value(stage.box, "outbox_processes", kind=SCHEDULER) == 1, "the scheduler is seen")
    assert value(stage.box, "outbox_outcomes_total", destination="ledger", outcome="delivered") == 100
    assert value(stage.box, "outbox_latency_seconds_count") == 100


# The dashboard, the alerts, the documentation

METRIC = re.compile(r"\boutbox_[a-z_]+\b")


def sample_names(box: Outbox) -> set[str]:
    """Return the names of all series; a histogram has several."""
    names = set()
    for family in families(box).values():
        ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        names |= {family.name + end for end in ends}
    return names


def alerts() -> list[dict[str, Any]]:
    loaded = YAML(typ="safe").load((DOCS / "alerts.yml").read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text())
    return loaded


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in alerts())
    yield from (target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])
    yield from (each["definition"] for each in dashboard()["templating"]["list"] if "definition" in each)


@on_postgres
def test_the_dashboard_and_the_alerts_use_metrics_that_exist(box: Outbox) -> None:
    asked = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert asked - sample_names(box) == set()


@on_postgres
def test_every_metric_is_on_the_dashboard(box: Outbox) -> None:
    shown = {name for panel in dashboard()["panels"] for t in panel["targets"] for name in METRIC.findall(t["expr"])}
    assert sample_names(box) - shown - {"outbox_send_seconds_sum", "outbox_send_seconds_count"} == set()


@on_postgres
def test_every_metric_is_documented_and_every_documented_one_exists(box: Outbox) -> None:
    cells = re.findall(r"^\| `(outbox_[a-z_]+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families(box).values()}
    assert sorted(cells) == sorted(names)


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    rows = re.findall(r"^\| `(Outbox\w+)` \| .+ \| .+ \|$", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert [rule["alert"] for rule in alerts()] == rows
    for rule in alerts():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"]


def test_every_expression_is_balanced() -> None:
    for expression in expressions():
        for left, right in ("()", "{}", "[]"):
            assert expression.count(left) == expression.count(right), expression


def test_the_dashboard_names_no_data_source_of_its_own_and_no_panel_covers_another() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))
    for panel in dashboard()["panels"]:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_one_event_is_enough_for_an_alert_of_failures(box: Outbox) -> None:
    outbox.handler("*", name="h")(lambda event: None)
    emit_one()
    assert value(box, "outbox_failed_total") == 0  # it is there before the first, so that the first is an increase


def test_workers_that_can_not_reach_their_broker_are_counted(box: Outbox) -> None:
    assert value(box, "outbox_workers_without_broker") == 0
    box.reporter.kind = WORKER
    box.reporter.broker_error = "refused"
    box.reporter.report_now()
    assert value(box, "outbox_workers_without_broker") == 1
    box.reporter.broker_error = None
    box.reporter.report_now()
    assert value(box, "outbox_workers_without_broker") == 0


def test_a_pause_says_for_how_long_it_has_lasted(box: Outbox) -> None:
    assert value(box, "outbox_paused_seconds", destination="everything") == 0
    alice = Operator("alice")
    controls.pause(box.dialect, "crm", operator=alice, force=True)
    assert value(box, "outbox_paused_seconds", destination="crm") > 0
    controls.resume(box.dialect, lambda: None, "crm", operator=alice)
    assert value(box, "outbox_paused_seconds", destination="everything") == 0


def test_a_periodic_job_that_is_overdue_says_for_how_long(box: Outbox) -> None:
    declare()
    scheduler(box)()
    assert value(box, "outbox_periodic_overdue_seconds", periodic_job="job") == 0
    change_job(box, next_run_at=declared(box).seen_at - timedelta(minutes=10))
    assert 600 <= value(box, "outbox_periodic_overdue_seconds", periodic_job="job") < 700
    change_job(box, paused=True)
    assert value(box, "outbox_periodic_overdue_seconds", periodic_job="job") == 0
