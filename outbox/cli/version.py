"""`outbox version`: print the versions of the package, of Python and of the dependencies."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import click

from outbox.version import __version__

DEPENDENCIES = ("peewee", "dramatiq", "apscheduler", "psycopg", "redis", "httpx", "starlette", "prometheus-client")


@click.command(name="version", short_help="Print the versions of outbox and its dependencies.")
def version_() -> None:
    """Print the versions of outbox, Python and the dependencies, for bug reports."""
    click.echo(f"outbox {__version__}")
    click.echo(f"Python {platform.python_version()} on {platform.platform()}")
    for name in DEPENDENCIES:
        try:
            click.echo(f"{name} {version(name)}")
        except PackageNotFoundError:
            click.echo(f"{name} is not installed")
