"""The deployment files: valid by the Compose specification's own schema, and saying what they should."""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.support.program import run
from tests.support.receiver import Receiver, answers

ROOT = Path(__file__).resolve().parent.parent
COMPOSE = ROOT / "docker-compose.yml"

OURS = ("init", "worker", "scheduler", "web")
SERVERS = ("postgres", "redis")
EXACT_VERSIONS = {"postgres": r"postgres:\d+\.\d+", "redis": r"redis:\d+\.\d+\.\d+"}


def validate(file: Path) -> subprocess.CompletedProcess[str]:
    """check-jsonschema carries the specification's schema, and fetches nothing."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def load() -> Any:
    return YAML(typ="safe").load(COMPOSE)


def service(name: str) -> Any:
    return load()["services"][name]


def procfile() -> dict[str, str]:
    lines = (ROOT / "Procfile").read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines)


def test_the_compose_file_is_valid() -> None:
    result = validate(COMPOSE)
    assert result.returncode == 0, result.stdout + result.stderr


def _misspell_a_key(file: Any) -> None:
    file["services"]["worker"]["comand"] = "dramatiq jobs"


def _restart_as_a_number(file: Any) -> None:
    file["services"]["redis"]["restart"] = 3


def _wait_for_an_unknown_condition(file: Any) -> None:
    file["services"]["worker"]["depends_on"]["redis"]["condition"] = "service_in_a_good_mood"


def _services_as_a_list(file: Any) -> None:
    file["services"] = list(file["services"].values())


@pytest.mark.parametrize(
    "break_it", [_misspell_a_key, _restart_as_a_number, _wait_for_an_unknown_condition, _services_as_a_list]
)
def test_the_validator_refuses_a_broken_file(break_it: Callable[[Any], None], tmp_path: Path) -> None:
    file = load()
    break_it(file)
    broken = tmp_path / "docker-compose.yml"
    YAML(typ="safe").dump(file, broken)

    result = validate(broken)

    assert result.returncode == 1, result.stdout + result.stderr
    assert "Schema validation errors" in result.stdout


def test_the_services_are_the_two_servers_and_our_processes() -> None:
    assert set(load()["services"]) == {*SERVERS, *OURS}


def test_redis_keeps_its_messages() -> None:
    command = service("redis")["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert command[0] == "redis-server"
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"


@pytest.mark.parametrize("name", [*SERVERS, "worker", "scheduler", "web"])
def test_what_runs_for_long_is_watched_restarted_and_given_time_to_stop(name: str) -> None:
    definition = service(name)
    assert definition["healthcheck"]["test"]
    assert definition["restart"] == "unless-stopped"
    assert re.fullmatch(r"\d+s", definition["stop_grace_period"])


def test_init_runs_once_before_the_others_and_again_only_if_it_failed() -> None:
    init = service("init")
    assert init["command"] == "outbox init"
    assert init["restart"] == "on-failure"
    assert init["healthcheck"] == {"disable": True}
    assert init["depends_on"]["postgres"]["condition"] == "service_healthy"
    for name in ("worker", "scheduler", "web"):
        waits_for = service(name)["depends_on"]
        assert waits_for["init"]["condition"] == "service_completed_successfully"
        assert waits_for["redis"]["condition"] == "service_healthy"


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_has_an_exact_version_a_volume_and_no_open_port(name: str) -> None:
    definition = service(name)
    assert re.fullmatch(EXACT_VERSIONS[name], definition["image"])
    volume, _, _ = definition["volumes"][0].partition(":")
    assert volume in load()["volumes"]
    assert all(port.startswith("127.0.0.1:") for port in definition["ports"])


@pytest.mark.parametrize("name", ["worker", "scheduler", "web"])
def test_a_container_runs_what_the_procfile_says(name: str) -> None:
    assert f"exec {service(name)['command']}" == procfile()[name]


def test_the_procfile_has_a_worker_a_scheduler_and_the_dashboard() -> None:
    assert set(procfile()) == {"worker", "scheduler", "web"}


def test_the_dashboard_is_for_this_machine_and_has_a_password() -> None:
    web = service("web")
    assert all(port.startswith("127.0.0.1:") for port in web["ports"])
    assert web["environment"]["OUTBOX_DASHBOARD_USER"] == "${DASHBOARD_USER:-outbox}"
    assert web["environment"]["OUTBOX_DASHBOARD_PASSWORD"].startswith("${DASHBOARD_PASSWORD:?")


def test_the_image_has_every_extra_since_settings_ask_for_them_at_run_time() -> None:
    (extras,) = re.findall(r'"\.\[(.*)\]"', (ROOT / "Dockerfile").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras.split(",") == sorted(project["optional-dependencies"])


def test_the_image_has_bytecode_since_its_user_may_not_write_any() -> None:
    assert "uv pip install --python /venv/bin/python --compile-bytecode" in (ROOT / "Dockerfile").read_text()


def test_every_password_comes_from_the_environment() -> None:
    text = COMPOSE.read_text()
    assert re.findall(r"PASSWORD: (?!\$\{)", text) == []
    assert set(re.findall(r"\$\{(\w+PASSWORD)", text)) == {
        "POSTGRES_PASSWORD",
        "REDIS_PASSWORD",
        "DASHBOARD_PASSWORD",
    }


@pytest.mark.parametrize("name", OURS)
def test_our_containers_know_both_servers(name: str) -> None:
    environment = service(name)["environment"]
    assert environment["OUTBOX_DATABASE_URL"].endswith("@postgres:5432/outbox")
    assert environment["OUTBOX_REDIS_URL"].endswith("@redis:6379/0")


@pytest.mark.parametrize("name", ["worker", "scheduler"])
def test_the_health_check_of_a_worker_and_of_a_scheduler_is_the_librarys_probe_of_its_processes(name: str) -> None:
    assert service(name)["healthcheck"]["test"] == ["CMD", "outbox", "health"]


def test_the_health_check_of_the_dashboard_fails_without_it_without_its_database_and_whatever_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    how, python, option, program = service("web")["healthcheck"]["test"]
    assert (how, python, option) == ("CMD", "python", "-c")
    assert f"HTTPConnection('127.0.0.1', {service('web')['environment']['OUTBOX_DASHBOARD_PORT']}, " in program
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with Receiver(answers(200), answers(503)) as dashboard:
        here = program.replace("8642", str(dashboard.port))
        assert [run(sys.executable, "-c", here).returncode for _ in range(2)] == [0, 1]
        assert {(request.method, request.target) for request in dashboard.requests} == {("GET", "/readyz")}
    assert run(sys.executable, "-c", here).returncode == 1


def test_the_image_is_built_from_every_package_of_the_library() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {pattern.rstrip("*") for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    copied = dict(re.findall(r"^COPY (\w+) (\w+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    assert packages == {source for source, target in copied.items() if source == target} - {"examples"}


def test_the_image_is_built_with_exact_versions_of_its_bases_and_of_uv() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    bases = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    assert len(set(bases)) == 1
    assert all(re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", base) for base in bases)
    (locked,) = re.findall(r"^uv==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert re.findall(r"uv==(\S+)", dockerfile) == [locked]


def test_the_image_runs_as_a_user_of_its_own_and_installs_by_the_lock() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER (?!root)", dockerfile, re.MULTILINE)
    assert "--constraints requirements.lock" in dockerfile
    copied = {
        source for line in re.findall(r"^COPY (?!--)(.*)$", dockerfile, re.MULTILINE) for source in line.split()[:-1]
    }
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == let_in
    assert all((ROOT / source).exists() for source in copied)


def test_the_example_environment_names_what_the_files_use() -> None:
    assigned = {line.split("=")[0] for line in (ROOT / ".env.example").read_text().splitlines() if "=" in line}
    assert assigned == {
        "HANDLERS", "OUTBOX_DATABASE_URL", "OUTBOX_REDIS_URL", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "DASHBOARD_USER",
        "DASHBOARD_PASSWORD",
    }  # fmt: skip
    # The scheduler loads them too: they may declare periodic jobs.
    for name in ("worker", "scheduler"):
        assert shlex.split(procfile()[name])[-1] == "${HANDLERS:-examples.orders.shop}"


def test_no_password_has_a_default_and_one_that_is_not_set_is_an_error_that_says_what_to_set() -> None:
    used = re.findall(r"\$\{(\w+PASSWORD)([^}]*)\}", COMPOSE.read_text())
    assert len(used) == 6
    for name, rest in used:
        assert rest == f":?set {name} in the environment or in .env, see .env.example"


def test_the_example_of_the_environment_has_no_password_to_copy() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    passwords = [line for line in lines if re.match(r"\w*PASSWORD=", line)]
    assert [line.partition("=")[2] for line in passwords] == ["", "", ""]
    assert "localonly" not in "".join(lines)
