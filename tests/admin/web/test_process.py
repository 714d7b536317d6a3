"""`outbox dashboard`, as a process on a real port."""

import signal
import socket
import sys
from base64 import b64encode
from pathlib import Path
from urllib.parse import urlencode

import pytest

from outbox.telemetry import audit
from tests.admin.web.browser import Document, form_to
from tests.support.dashboard import READY, ask, dashboard, link_of, port_of, sign_in
from tests.support.processes import BIN, MakeStage, Stage
from tests.support.program import run, run_python
from tests.support.receiver import LOOPBACK
from tests.support.servers import PATIENCE_SECONDS


def test_an_event_is_found_retried_and_delivered_by_a_worker(make_stage: MakeStage) -> None:
    stage = make_stage(sweep_seconds=3600)  # the dashboard wakes the worker
    (event,) = stage.emit(1, do="fail", times=1, max_attempts=1)
    stage.worker()
    stage.wake()
    stage.wait_until_all("failed")
    program = dashboard(stage)
    port, session = port_of(program), sign_in(program)

    status, _, html = ask(port, "GET", "/events?status=failed", Cookie=session)
    assert status == 200
    assert "attempt 1 fails" in html
    status, headers, html = ask(port, "GET", f"/confirm?action=retry&scope=selected&id={event}", Cookie=session)
    cookie = f"{session}; {headers['set-cookie'].split(';')[0]}"
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


def test_responses_do_not_name_the_server_program(stage: Stage) -> None:
    _, headers, _ = ask(port_of(dashboard(stage)), "GET", "/")
    assert "server" not in headers


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_by_a_signal(stage: Stage, signum: signal.Signals) -> None:
    program = dashboard(stage)
    assert ask(port_of(program), "GET", "/", Cookie=sign_in(program))[0] == 200
    program.signal(signum)
    assert program.wait() == 0
    assert "Traceback" not in program.said()


STOPPING_EARLY = """
import signal, sys
import click
from outbox.cli import main

echo = click.echo

def echo_and_stop(text, **options):
    echo(text, **options)
    if text.startswith("The dashboard is running on"):
        signal.raise_signal(signal.SIGTERM)

click.echo = echo_and_stop
sys.argv = ["outbox", "dashboard", "--port", "0"]
main()
"""


def test_a_signal_that_arrives_before_uvicorn_runs_ends_it_as_well(stage: Stage) -> None:
    assert READY in run_python(STOPPING_EARLY, database_url=stage.settings.database_url)


def test_a_forged_host_is_refused(stage: Stage) -> None:
    program = dashboard(stage)
    port, cookie = port_of(program), sign_in(program)
    assert ask(port, "GET", "/", Cookie=cookie)[0] == 200
    assert ask(port, "GET", "/", Cookie=cookie, Host=f"evil.example.com:{port}")[0] == 403
    assert ask(port, "GET", "/", Cookie=cookie, Host=f"evil.example.com:{port}", X_Forwarded_Host="127.0.0.1")[0] == 403


def test_a_link_signs_in_one_browser_and_the_terminal_has_the_next(stage: Stage) -> None:
    program = dashboard(stage)
    port, used = port_of(program), link_of(program)
    assert ask(port, "GET", "/")[0] == 403
    first = sign_in(program)
    assert ask(port, "GET", used)[0] == 403
    assert link_of(program) != used
    second = sign_in(program)
    assert [ask(port, "GET", "/", Cookie=cookie)[0] for cookie in (first, second)] == [200, 200]


# What nginx 1.22 sends for a bare `proxy_pass http://127.0.0.1:PORT;`, for a browser's GET and a form's POST.
# Nothing in it tells that it comes from elsewhere.
NGINX_GET = (
    "GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nUser-Agent: Mozilla/5.0\r\n"
    "Accept: text/html\r\n\r\n"
)
NGINX_POST = (
    "POST /act HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Length: {length}\r\n"
    "Content-Type: application/x-www-form-urlencoded\r\nCookie: outbox_csrf={token}\r\n\r\n{body}"
)


def exchange(port: int, request: str) -> str:
    """The response, whole, to exactly these bytes."""
    with socket.create_connection((LOOPBACK, port), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(request.encode())
        return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()


@pytest.mark.parametrize("path", ["/", "/events", "/metrics", "/login?token=guessed", "/static/dashboard.css"])
def test_behind_nginx_as_it_is_by_default_a_stranger_sees_nothing(stage: Stage, path: str) -> None:
    port = port_of(dashboard(stage))
    response = exchange(port, NGINX_GET.format(path=path, port=port))
    assert response.startswith("HTTP/1.1 403 ")
    assert "OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD" in response


def test_behind_nginx_as_it_is_by_default_a_stranger_changes_nothing(stage: Stage) -> None:
    (event,) = stage.emit(1)
    token = "A" * 43
    body = f"action=fail&scope=selected&id={event}&csrf_token={token}"
    port = port_of(dashboard(stage))
    request = NGINX_POST.format(port=port, length=len(body), token=token, body=body)
    assert exchange(port, request).startswith("HTTP/1.1 403 ")
    assert stage.statuses() == {"pending": 1}


@pytest.mark.parametrize("options", [[], ["--forwarded-allow-ips=*"]], ids=["plain", "forwarded"])
def test_on_a_unix_socket_every_request_is_refused_whatever_its_headers(
    stage: Stage, tmp_path: Path, options: list[str]
) -> None:
    path = tmp_path / "socket"
    module = tmp_path / "served.py"
    module.write_text(
        "from outbox.admin.web import make_app\n"
        "from outbox.admin.web.login_link import LoginLinkAuthentication\n"
        "app = make_app(authenticate=LoginLinkAuthentication())\n"
    )
    command = [sys.executable, "-m", "uvicorn", "served:app", "--app-dir", str(tmp_path), "--uds", str(path), *options]
    stage.start("uvicorn", *command, ready="running on unix socket")
    for more in ("", "X-Forwarded-For: 127.0.0.1\r\n"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_SECONDS)
            connection.connect(str(path))
            connection.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\n{more}Connection: close\r\n\r\n".encode())
            assert connection.recv(65_536).startswith(b"HTTP/1.1 403 ")


def test_a_password_is_asked_for_and_read_only_is_kept(make_stage: MakeStage) -> None:
    stage = make_stage(dashboard_user="ada", dashboard_password="correct horse", dashboard_host="127.0.0.1")
    port = port_of(dashboard(stage, "--read-only"))
    assert ask(port, "GET", "/")[0] == 401
    known = "Basic " + b64encode(b"ada:correct horse").decode()
    status, _, html = ask(port, "GET", "/", Authorization=known)
    assert status == 200
    assert "read-only, signed in as ada" in html
    token = "A" * 43
    body = f"action=delete&scope=all&csrf_token={token}"
    status, _, html = ask(port, "POST", "/act", body, Authorization=known, Cookie=f"outbox_csrf={token}")
    assert (status, "This dashboard is read-only" in html) == (403, True)


def test_an_open_address_without_a_password_is_refused(sqlite_url: str) -> None:
    done = run(BIN / "outbox", "dashboard", "--host", "0.0.0.0", "--port", "0", database_url=sqlite_url)  # noqa: S104
    assert done.returncode == 2
    assert done.stdout.startswith(
        "outbox: Other machines can reach 0.0.0.0, and could read and change events without a password"
    )
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


SLOWLY = """
import time
from outbox.admin.web import background_action
from outbox.operations import apply_action

apply = apply_action.apply
background_action.WAIT_SECONDS = 0

def slowly(*args, **options):
    return apply(*args, **options, batch_size=1, per_second=2.0)

apply_action.apply = slowly
"""


def test_a_dashboard_that_is_stopped_during_an_action_leaves_an_entry_that_says_so(
    stage: Stage, tmp_path: Path
) -> None:
    """SIGTERM: the action stops after its batch; the audit has what was done."""
    made = stage.emit(20, do="pass")
    (tmp_path / "slowly.py").write_text(SLOWLY)
    stage.environment["PYTHONPATH"] = str(tmp_path)
    program = dashboard(stage, "-m", "slowly")
    port, session = port_of(program), sign_in(program)
    kind, token = "application/x-www-form-urlencoded", "A" * 43
    body = f"action=fail&scope=all&csrf_token={token}"
    answer = ask(port, "POST", "/act", body, Cookie=f"{session}; outbox_csrf={token}", Content_Type=kind)
    assert answer[0] == 303
    program.signal(signal.SIGTERM)
    assert program.wait() == 0
    (entry,) = audit.latest(stage.box.dialect)
    assert (entry.outcome, entry.cause) == ("interrupted", "the dashboard was stopped")
    assert 1 <= entry.affected < len(made)
    assert stage.rows("status").count(("failed",)) == entry.affected
    assert "Traceback" not in program.said()
