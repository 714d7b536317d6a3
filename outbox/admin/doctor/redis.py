"""Redis: wake-ups and limits are hints there, and may be lost; what is delivered to it may not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from outbox.admin.doctor.check import Context, Finding, note, ok, problem, warning
from outbox.errors import OutboxError

# Destinations whose events are in Redis, and nowhere else, once they are delivered.
KEPT_THERE = ("RedisStream", "ActorDestination")
FULL = 0.99


def reached(context: Context) -> Iterator[Finding]:
    settings = context.box.settings
    if settings.redis_url is None:
        yield from _without(context)
        return
    try:
        info = _info(context)
    except OutboxError as error:
        yield problem(
            f"Redis can't be used: {error}. Until it can, no wake-up and no sweep reaches a worker; workers look for "
            f"due events by themselves, every {settings.sweep_seconds:g} s.",
            "Start it, or set OUTBOX_REDIS_URL to where it is.",
        )
        return
    text = str(info.get("redis_version", "0"))
    version = tuple(int(part) for part in text.split(".") if part.isdigit())
    oldest = ".".join(map(str, context.thresholds.oldest_redis))
    if version < context.thresholds.oldest_redis:
        yield problem(
            f"Redis is of version {text}, and the outbox needs {oldest} or later: its workers wait with BLMOVE.",
            f"Upgrade it, or set OUTBOX_REDIS_URL to one of version {oldest} or later.",
        )
    elif info.get("role") == "slave":
        yield problem(
            "OUTBOX_REDIS_URL names a replica, which refuses to be written to.", "Set OUTBOX_REDIS_URL to its master."
        )
    else:
        yield ok(f"Redis answers: {info.get('server_name', 'redis')} {info.get('valkey_version', text)}.")


def eviction(context: Context) -> Iterator[Finding]:
    if context.box.settings.redis_url is None:
        return
    info = _info(context)
    if "maxmemory" not in info:
        yield note("Redis does not say what it does when it is full.", "Ask its provider for `maxmemory-policy`.")
        return
    policy = info.get("maxmemory_policy")
    if not info["maxmemory"] or policy == "noeviction":
        yield ok("Redis throws nothing away to make room.")
        return
    advice = "Run `CONFIG SET maxmemory-policy noeviction`, and set it in its configuration, or at its provider."
    if str(policy).startswith("volatile-"):
        yield warning(
            f"When Redis is full, it forgets keys that expire (maxmemory-policy {policy}): limits of destinations and "
            "what is known about dead ones.",
            advice,
        )
    else:
        yield problem(
            f"When Redis is full, it forgets any key (maxmemory-policy {policy}), queues and streams included: "
            f"{_at_stake(context)}.",
            advice,
        )


def persistence(context: Context) -> Iterator[Finding]:
    if context.box.settings.redis_url is None:
        return
    info = _info(context)
    if info.get("rdb_last_bgsave_status", "ok") != "ok" or info.get("aof_last_write_status", "ok") != "ok":
        yield problem(
            "Redis can't write to its disk, and refuses all commands that change something until it can.",
            "Make room on its disk; then `BGSAVE` shows whether that was it.",
        )
        return
    if info.get("aof_enabled"):
        yield ok("Redis keeps what it holds in an append-only file.")
        return
    saving = _saving(context)
    if saving is None:
        yield note(
            "Whether Redis keeps what it holds over a restart can't be looked at: it refuses CONFIG.",
            "Ask its provider for `appendonly` and `save`.",
        )
    elif saving:
        yield from _lossy(
            context, f"Redis writes to its disk now and then (save {saving}): a restart loses what came since."
        )
    else:
        yield from _lossy(context, "Redis writes nothing to its disk: a restart loses all that it holds.")


def memory(context: Context) -> Iterator[Finding]:
    if context.box.settings.redis_url is None:
        return
    info = _info(context)
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if not most:
        yield ok("Redis has no limit to its memory but the host's.")
        return
    share = used / most
    if share < context.thresholds.used_memory:
        yield ok(f"Redis uses {share:.0%} of the memory that it may.")
        return
    kind = problem if share >= FULL else warning
    yield kind(
        f"Redis uses {share:.0%} of the memory that it may: when it is full, it refuses wake-ups and entries of "
        "streams, or forgets others.",
        "Raise it with `CONFIG SET maxmemory …`, or look for what fills it with `redis-cli --bigkeys`; the `maxlen` "
        "of a RedisStream keeps a stream short.",
    )


def _without(context: Context) -> Iterator[Finding]:
    settings = context.box.settings
    if context.has_own_broker:
        yield ok("OUTBOX_REDIS_URL is not set: the broker that the application has set carries the wake-ups.")
        return
    if settings.dispatch != "dramatiq" or not context.on_postgres:
        yield ok("No Redis is needed: OUTBOX_REDIS_URL is not set, and wake-ups stay inside each process.")
        return
    yield warning(
        "OUTBOX_REDIS_URL is not set: what one process emits wakes no worker in another, and waits for the next sweep, "
        f"up to {settings.sweep_seconds:g} s.",
        "Set OUTBOX_REDIS_URL, for all processes. If a module of yours sets a broker, name it: `outbox doctor -m "
        "your.broker`. Set OUTBOX_DISPATCH=off, if sweeps are what you want.",
    )


def _lossy(context: Context, what: str) -> Iterator[Finding]:
    """Wake-ups and limits are repeated, so that is all right, unless something is delivered to Redis."""
    if _kept_there(context):
        yield warning(
            f"{what} {_at_stake(context)}.",
            "Run `CONFIG SET appendonly yes`, and set it in its configuration, or at its provider.",
        )
    else:
        yield note(f"{what} That costs wake-ups and limits, so deliveries are late by a sweep at most.")


def _at_stake(context: Context) -> str:
    kept = _kept_there(context)
    if kept:
        return f"Events that were delivered to {', '.join(kept)} are lost with it"
    return "wake-ups and limits are lost with it, and deliveries are late by a sweep"


def _kept_there(context: Context) -> list[str]:
    """Those registered here, and those that workers have told of."""
    kinds = {name: type(each).__name__ for name, each in context.box.registry.destinations.items()}
    with suppress(Exception):  # the database has checks of its own
        for process in context.overview.processes:
            kinds |= {name: each.get("kind", "") for name, each in process.details.get("destinations", {}).items()}
    return sorted(name for name, kind in kinds.items() if kind in KEPT_THERE)


def _info(context: Context) -> Mapping[str, Any]:
    from outbox.storage.redis_client import translated_errors  # an extra

    with translated_errors():
        found: Mapping[str, Any] = context.redis.info()
    return found


def _saving(context: Context) -> str | None:
    """When it writes to its disk; None if it won't say."""
    from outbox.storage.redis_client import CommandRefused, translated_errors

    try:
        with translated_errors():
            return str(context.redis.config_get("save").get("save", ""))
    except CommandRefused:
        return None
