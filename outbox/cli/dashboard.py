"""`outbox dashboard`: serve the web page for operators, with uvicorn."""

from __future__ import annotations

import logging
import signal
import socket
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from outbox.cli.options import modules_option
from outbox.current_outbox import current, loaded_settings
from outbox.errors import SettingsError
from outbox.settings import Settings
from outbox.telemetry import logs

if TYPE_CHECKING:
    from outbox.admin.web.authentication import Authenticate

# How long uvicorn waits for open requests when it stops.
STOP_SECONDS = 5


@click.command(short_help="Serve the web page for operators.")
@click.option("--host", help="Listen on this address.  [default: OUTBOX_DASHBOARD_HOST]")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Listen on this port; 0 takes a free one.  [default: OUTBOX_DASHBOARD_PORT]",
)
@click.option("--read-only", is_flag=True, help="Show everything, but allow no changes.")
@modules_option
def dashboard(host: str | None, port: int | None, read_only: bool) -> None:
    """Serve a web page that shows the state of the outbox, lists events, and can retry, replay, fail and delete them.

    Without a password, it accepts requests from this machine only, and prints a link that signs in one browser. To
    listen on another address, or behind a proxy, set OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD. Stop it with
    Ctrl-C or SIGTERM.
    """
    if find_spec("uvicorn") is None:
        raise SettingsError("The dashboard needs uvicorn, not installed here: pip install 'dramatiq-outbox[ui]'")
    import uvicorn

    from outbox.admin.web.app import make_app
    from outbox.admin.web.bounded_protocol import BoundedProtocol
    from outbox.admin.web.login_link import LoginLinkAuthentication

    settings = loaded_settings()
    logs.set_up(settings.log_format)
    host = settings.dashboard_host if host is None else host
    authenticate = choose_authentication(host, settings)
    app = make_app(authenticate=authenticate, read_only=True if read_only else None)
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        http=BoundedProtocol,
        ws="none",
        proxy_headers=False,  # forwarded_headers.py reads them, from trusted proxies only
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    with _listen(host, settings.dashboard_port if port is None else port) as listener:
        current()  # raises for an invalid OUTBOX_DATABASE_URL now, not at the first request
        server = uvicorn.Server(config)
        # uvicorn installs the same handler when it runs: a signal that arrives earlier would be lost without this.
        # After it has stopped, uvicorn raises the signal again. This handler then keeps it from killing the process.
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, server.handle_exit)
        address = _url_of(listener)
        click.echo(f"The dashboard is running on {address}")
        if isinstance(authenticate, LoginLinkAuthentication):
            authenticate.announce(lambda link: _print_link(address, link))
        server.run(sockets=[listener])


def choose_authentication(host: str, settings: Settings) -> Authenticate:
    """Return authentication by the password in the settings, or, on a loopback address, by a login link.

    Raise SettingsError if other machines could reach the address and no password is set.
    """
    from outbox.admin.web.login_link import LoginLinkAuthentication, is_loopback
    from outbox.admin.web.passwords import passwords_from_settings

    passwords = passwords_from_settings(settings)
    if passwords is not None:
        return passwords
    if is_loopback(host):
        return LoginLinkAuthentication()
    raise SettingsError(
        f"Other machines can reach {host}, and could read and change events without a password. Set "
        "OUTBOX_DASHBOARD_USER and OUTBOX_DASHBOARD_PASSWORD, or listen on 127.0.0.1."
    )


def _print_link(address: str, link: str) -> None:
    with suppress(OSError):  # the terminal may be closed; that must not break the sign-in that used the last link
        click.echo(f"Sign in with this link. It works once; then a new one is printed here: {address}{link}")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise SettingsError(
            f"The dashboard can't listen on {host}, port {port}: {error.strerror or error}. Choose another with "
            "--host and --port, or with OUTBOX_DASHBOARD_HOST and OUTBOX_DASHBOARD_PORT."
        ) from None


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
