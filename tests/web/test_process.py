"""`outbox dashboard`, as a process on a real port."""

import http.client
import re
import signal
import socket
import sys
from base64 import b64encode
from urllib.parse import urlencode

import pytest

from tests.processes import BIN, MakeStage, Program, Stage
from tests.program import run, run_python
from tests.receiver import LOOPBACK
from tests.servers import PATIENCE_SECONDS
from tests.web.browser import Document, form_to

READY = "The dashboard is running on "


def dashboard(stage: Stage, *options: str) -> Program:
    return stage.start("dashboard", BIN / "outbox", "dashboard", "--port", "0", *options, ready=READY)


def port_of(program: Program) -> int:
    found = re.search(rf"{READY}http://127\.0\.0\.1:(\d+)/", program.said())
    assert found is not None, program.said()
    return int(found[1])


def ask(port: int, method: str, path: str, body: str = "", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=PATIENCE_SECONDS)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body.encode() or None, named)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()


def test_an_event_is_found_retried_and_delivered_by_a_worker(make_stage: MakeStage) -> None:
    stage = make_stage(sweep_seconds=3600)  # the dashboard wakes the worker
    (event,) = stage.emit(1, do="fail", times=1, max_attempts=1)
    stage.worker()
    stage.wake()
    stage.wait_until_all("failed")
    port = port_of(dashboard(stage))

    status, _, html = ask(port, "GET", "/events?status=failed")
    assert status == 200
    assert "attempt 1 fails" in html
    status, headers, html = ask(port, "GET", f"/confirm?action=retry&scope=selected&id={event}")
    cookie = headers["set-cookie"].split(";")[0]
    form = form_to(Document(html), "/act")
    # The handler fails at its first attempt, and attempts start again: let it pass this time.
    with stage.box.dialect.connection():
        stage.box.dialect.run('UPDATE outbox_event SET payload = \'{"do": "pass"}\'')
    kind = "application/x-www-form-urlencoded"
    status, headers, _ = ask(port, "POST", "/act", urlencode(form.fields), Cookie=cookie, Content_Type=kind)
    assert status == 303
    assert headers["location"].endswith("did=retry&number=1")

    stage.wait_until_all("delivered")
    assert stage.ended() == [event]


def test_it_says_which_programs_it_is_and_no_more(stage: Stage) -> None:
    _, headers, _ = ask(port_of(dashboard(stage)), "GET", "/")
    assert "server" not in headers


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_it_is_told_to(stage: Stage, signum: signal.Signals) -> None:
    program = dashboard(stage)
    assert ask(port_of(program), "GET", "/")[0] == 200
    program.signal(signum)
    assert program.wait() == 0
    assert "Traceback" not in program.said()


def test_a_forged_host_is_refused(stage: Stage) -> None:
    port = port_of(dashboard(stage))
    assert ask(port, "GET", "/", Host="evil.example.com")[0] == 403
    assert ask(port, "GET", "/", Host=f"evil.example.com:{port}", X_Forwarded_Host="127.0.0.1")[0] == 403


def test_a_password_is_asked_for_and_read_only_is_kept(make_stage: MakeStage) -> None:
    stage = make_stage(dashboard_user="ada", dashboard_password="hush", dashboard_host="127.0.0.1")
    port = port_of(dashboard(stage, "--read-only"))
    assert ask(port, "GET", "/")[0] == 401
    known = "Basic " + b64encode(b"ada:hush").decode()
    status, _, html = ask(port, "GET", "/", Authorization=known)
    assert status == 200
    assert "read-only, as ada" in html
    token = "A" * 43
    body = f"action=delete&scope=all&csrf_token={token}"
    status, _, html = ask(port, "POST", "/act", body, Authorization=known, Cookie=f"outbox_csrf={token}")
    assert (status, "This dashboard is read-only" in html) == (403, True)


def test_an_open_address_without_a_password_is_refused(sqlite_url: str) -> None:
    done = run(BIN / "outbox", "dashboard", "--host", "0.0.0.0", "--port", "0", database_url=sqlite_url)  # noqa: S104
    assert done.returncode == 2
    assert done.stdout.startswith("outbox: On 0.0.0.0 everybody who reaches it could read and change events")
    assert READY not in done.stdout


def test_a_port_that_is_taken_is_one_clear_line(sqlite_url: str) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run(BIN / "outbox", "dashboard", "--port", port, database_url=sqlite_url)
    assert done.returncode == 2
    assert f"can't listen on 127.0.0.1, port {port}" in done.stdout
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("package", ["starlette", "jinja2", "uvicorn"])
def test_without_the_extra_it_says_what_to_install(sqlite_url: str, package: str) -> None:
    program = (
        f"import sys, importlib.util as u; find = u.find_spec\n"
        f"u.find_spec = lambda name, *a: None if name == {package!r} else find(name, *a)\n"
        f"sys.argv = ['outbox', 'dashboard', '--port', '0']\n"
        f"from outbox.cli import main; main()"
    )
    done = run(sys.executable, "-c", program, database_url=sqlite_url)
    assert done.returncode == 2
    assert f"needs {package}, not installed here: pip install 'dramatiq-outbox[ui]'" in done.stdout


@pytest.mark.parametrize("package", ["starlette", "jinja2", "uvicorn", "outbox.admin.web"])
def test_the_command_line_does_not_need_the_extra(package: str) -> None:
    assert run_python(f"import sys, outbox.cli; print({package!r} in sys.modules)") == "False\n"
