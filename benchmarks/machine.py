"""Which machine, versions and settings a run's numbers belong to."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psycopg
import redis

from benchmarks.ground import Ground
from outbox.settings import Settings

LIBRARIES = ("dramatiq-outbox", "dramatiq", "peewee", "psycopg", "redis", "httpcore")
POSTGRES_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "autovacuum")


def describe(ground: Ground) -> dict[str, str]:
    return dict(_facts(ground))


def _facts(ground: Ground) -> Iterator[tuple[str, str]]:
    yield "machine", f"{os.cpu_count()} cores, {_processor()}, {_memory()}, {platform.system()} {platform.machine()}"
    with psycopg.connect(ground.postgres.url) as connection:
        shown = {name: connection.execute(f"SHOW {name}".encode()).fetchone() for name in POSTGRES_SETTINGS}
        settings = ", ".join(f"{name}={row[0]}" for name, row in shown.items() if row is not None)
        (number,) = connection.execute("SHOW server_version").fetchone() or ("?",)
        yield "PostgreSQL", f"{number.split()[0]}: {settings}"
    with redis.Redis.from_url(ground.redis.url) as client:
        told = client.info("server")
        name = told.get("server_name", "redis")
        yield "Redis", f"{name} {told.get(f'{name}_version', told['redis_version'])}: in memory only"
    yield "Python", platform.python_version()
    yield "libraries", ", ".join(f"{name} {_version(name)}" for name in LIBRARIES)
    ours = Settings()
    yield "outbox", f"OUTBOX_BATCH_SIZE={ours.batch_size}, OUTBOX_DRAINS={ours.drains}, 8 threads per worker process"
    size = ground.size
    yield "size", f"{size.name}: {size.events:,} events with 300 bytes of payload, {size.rounds} rounds by turns"


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return platform.processor() or "unknown" if found is None else found[1]


def _memory() -> str:
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
