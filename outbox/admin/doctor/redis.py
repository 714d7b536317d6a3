"""Check Redis: that it can be reached, and that it does not lose what it holds.

If Redis loses wake-ups (messages that tell a worker that events are due) or the state of rate limits, no event is lost:
the next sweep finds the events that are due. But events that were delivered to a stream or to an actor are in Redis
only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from outbox.admin.doctor.check import Context, Finding, note, ok, problem, warning
from outbox.errors import OutboxError, as_sentence

# Kinds of destinations whose delivered events are in Redis only.
STORED_IN_REDIS = ("RedisStream", "ActorDestination")
# The part of maxmemory from which Redis counts as full.
FULL = 0.99


def reachable(context: Context) -> Iterator[Finding]:
    """Check that Redis can be reached, is new enough, and is not a replica."""
    settings = context.box.settings
    if settings.redis_url is None:
        yield from _not_configured(context)
        return
    try:
        info = _info(context)
    except OutboxError as error:
        yield problem(
            f"Redis can't be used: {as_sentence(error)} While it can't, no wake-up and no sweep reaches a worker, and "
            f"workers poll for due events every {settings.sweep_seconds:g} s.",
            "Start Redis, or set OUTBOX_REDIS_URL to its address.",
        )
        return
    reported = str(info.get("redis_version", "0"))
    version = tuple(int(part) for part in reported.split(".") if part.isdigit())
    oldest = ".".join(map(str, context.thresholds.oldest_redis))
    if version < context.thresholds.oldest_redis:
        yield problem(
            f"Redis has the version {reported}, but the outbox needs {oldest} or later: its workers wait with BLMOVE.",
            f"Upgrade Redis, or set OUTBOX_REDIS_URL to a server of version {oldest} or later.",
        )
    elif info.get("role") == "slave":
        yield problem(
            "OUTBOX_REDIS_URL is the address of a replica, which refuses writes.", "Set OUTBOX_REDIS_URL to its master."
        )
    else:
        yield ok(f"Redis can be reached: {info.get('server_name', 'redis')} {info.get('valkey_version', reported)}.")


def eviction(context: Context) -> Iterator[Finding]:
    """Check that Redis does not evict keys when its memory is full."""
    if context.box.settings.redis_url is None:
        return
    info = _info(context)
    if "maxmemory" not in info:
        yield note(
            "Redis does not report what it does when its memory is full.", "Ask its provider for `maxmemory-policy`."
        )
        return
    policy = info.get("maxmemory_policy")
    if not info["maxmemory"] or policy == "noeviction":
        yield ok("Redis does not evict keys.")
        return
    advice = "Run `CONFIG SET maxmemory-policy noeviction`, and set it in the configuration file or at the provider."
    if str(policy).startswith("volatile-"):
        yield warning(
            f"When its memory is full, Redis evicts keys that have an expiry (maxmemory-policy {policy}): the limits "
            "and circuit breakers of destinations.",
            advice,
        )
    else:
        yield problem(
            f"When its memory is full, Redis evicts any key (maxmemory-policy {policy}), queues and streams included: "
            f"{_what_is_lost(context)}.",
            advice,
        )


def persistence(context: Context) -> Iterator[Finding]:
    """Check that Redis keeps its data over a restart."""
    if context.box.settings.redis_url is None:
        return
    info = _info(context)
    if info.get("rdb_last_bgsave_status", "ok") != "ok" or info.get("aof_last_write_status", "ok") != "ok":
        yield problem(
            "Redis can't write to its disk, and refuses all writes until it can.",
            "Make room on its disk; then run `BGSAVE` to see whether it works again.",
        )
        return
    if info.get("aof_enabled"):
        yield ok("Redis stores its data in an append-only file.")
        return
    save = _save_setting(context)
    if save is None:
        yield note(
            "It is not known whether Redis keeps its data over a restart, because it refuses CONFIG.",
            "Ask its provider for `appendonly` and `save`.",
        )
    elif save:
        yield from _may_lose(
            context, f"Redis writes to its disk from time to time (save {save}): a restart loses later changes."
        )
    else:
        yield from _may_lose(context, "Redis does not write to its disk: a restart loses all its data.")


def memory(context: Context) -> Iterator[Finding]:
    """Check that Redis uses less memory than its maxmemory."""
    if context.box.settings.redis_url is None:
        return
    info = _info(context)
    maxmemory, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if not maxmemory:
        yield ok("Redis has no maxmemory: it may use all memory of its host.")
        return
    share = used / maxmemory
    if share < context.thresholds.used_memory:
        yield ok(f"Redis uses {share:.0%} of its maxmemory.")
        return
    kind = problem if share >= FULL else warning
    yield kind(
        f"Redis uses {share:.0%} of its maxmemory: when its memory is full, it refuses wake-ups and stream entries, or "
        "evicts keys.",
        "Raise the limit with `CONFIG SET maxmemory …`, or find the largest keys with `redis-cli --bigkeys`; the "
        "`maxlen` of a RedisStream limits a stream.",
    )


def _not_configured(context: Context) -> Iterator[Finding]:
    settings = context.box.settings
    if context.has_own_broker:
        yield ok("OUTBOX_REDIS_URL is not set: wake-ups use the broker that the application has set.")
        return
    if settings.dispatch != "dramatiq" or not context.on_postgres:
        yield ok("No Redis is needed: OUTBOX_REDIS_URL is not set, and wake-ups stay inside each process.")
        return
    yield warning(
        "OUTBOX_REDIS_URL is not set: an event that one process emits does not wake a worker in another process, and "
        f"waits for the next sweep, up to {settings.sweep_seconds:g} s.",
        "Set OUTBOX_REDIS_URL for all processes. If a module of yours sets a broker, name it: `outbox doctor -m "
        "your.broker`. If sweeps are enough, set OUTBOX_DISPATCH=off.",
    )


def _may_lose(context: Context, what: str) -> Iterator[Finding]:
    """Yield a warning if events are delivered to Redis; otherwise a note.

    Lost wake-ups and limits only delay deliveries.
    """
    if _stored_in_redis(context):
        yield warning(
            f"{what} {_what_is_lost(context)}.",
            "Run `CONFIG SET appendonly yes`, and set it in the configuration file or at the provider.",
        )
    else:
        yield note(f"{what} Wake-ups and limits are lost then, which delays deliveries by one sweep at most.")


def _what_is_lost(context: Context) -> str:
    """Return what is lost when Redis loses its data."""
    names = _stored_in_redis(context)
    if names:
        return f"Events that were delivered to {', '.join(names)} are lost then"
    return "wake-ups and limits are lost then, and deliveries are delayed by one sweep"


def _stored_in_redis(context: Context) -> list[str]:
    """Return the destinations whose events are in Redis only: those registered here, and those of the workers."""
    kinds = {name: type(each).__name__ for name, each in context.box.registry.destinations.items()}
    with suppress(Exception):  # the checks of the database report this error
        for process in context.overview.processes:
            kinds |= {name: each.get("kind", "") for name, each in process.details.get("destinations", {}).items()}
    return sorted(name for name, kind in kinds.items() if kind in STORED_IN_REDIS)


def _info(context: Context) -> Mapping[str, Any]:
    from outbox.storage.redis_client import translated_errors  # optional dependency

    with translated_errors():
        info: Mapping[str, Any] = context.redis.info()
    return info


def _save_setting(context: Context) -> str | None:
    """Return the setting `save`, which says when Redis writes to its disk; None if it refuses CONFIG."""
    from outbox.storage.redis_client import CommandRefused, translated_errors

    try:
        with translated_errors():
            return str(context.redis.config_get("save").get("save", ""))
    except CommandRefused:
        return None
