"""`outbox version`"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import click

from outbox.version import __version__

BUILT_ON = ("peewee", "dramatiq", "apscheduler", "psycopg", "redis", "httpx", "starlette", "prometheus-client")


@click.command(name="version", short_help="Tell the versions of this program and of what it is built on.")
def version_() -> None:
    """Tell the versions of this program and of what it is built on: what a bug report needs."""
    click.echo(f"outbox {__version__}")
    click.echo(f"Python {platform.python_version()} on {platform.platform()}")
    for name in BUILT_ON:
        try:
            click.echo(f"{name} {version(name)}")
        except PackageNotFoundError:
            click.echo(f"{name} is not installed")
