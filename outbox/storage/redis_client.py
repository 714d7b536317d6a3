"""Redis as the library uses it: clients that give up soon, and what becomes of commands that are sent together.

The one module here that knows redis, which is an extra: others import this one where they need it, and not before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from outbox.destinations.outcome import DELIVERED_OUTCOME, Outcome, Retry
from outbox.errors import SettingsError, Unavailable, describe

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.client import Pipeline
    from redis.retry import Retry as Retries
except ImportError:
    raise SettingsError("redis is not installed: pip install 'dramatiq-outbox[redis]'") from None

# Seconds. Nobody waits long for a Redis that does not answer.
CONNECT_TIMEOUT = 2.0
ANSWER_TIMEOUT = 5.0

# Answers that say nothing about what was asked, only that the server can't be used now: those with a class of their
# own, and those that redis-py leaves as text. (A script is missing when the server was restarted a moment ago.)
OUT_OF_ORDER = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.OutOfMemoryError,
    redis.ReadOnlyError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.NoScriptError,
    redis.exceptions.TryAgainError,
)
# One name for the same host.
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
OUT_OF_ORDER_CODES = ("BUSY ", "MISCONF ", "NOREPLICAS ")


class Refused(SettingsError):
    """Redis is there, and won't do what it was asked."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        super().__init__(f"Redis refuses a command: {answer}")


def make_client(url: str, *, answer_timeout: float = ANSWER_TIMEOUT, source: str = "OUTBOX_REDIS_URL") -> redis.Redis:
    """A client that gives up soon and does not try again by itself: its callers know better when to.

    It opens no connection yet, and its pool may be carried over a fork.
    """
    try:
        client = redis.Redis.from_url(
            url,
            socket_connect_timeout=min(CONNECT_TIMEOUT, answer_timeout),
            socket_timeout=answer_timeout,
            retry=Retries(NoBackoff(), 0),
            health_check_interval=30,
            # With 3, redis-py no longer looks whether a connection still holds an answer that somebody left unread.
            protocol=2,
        )
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # refuses, without connecting, options that there are not
    except (ValueError, TypeError):
        # Without the client's words: they quote the URL, and perhaps the password.
        raise SettingsError(
            f"{source} can't be read as redis://user:password@host:port/0, rediss:// or unix://; "
            "special characters in a password must be percent-encoded."
        ) from None
    return client


@dataclass(frozen=True, slots=True)
class Address:
    """Where a client connects to. Without credentials: it is shown in errors."""

    place: str
    db: int

    def __str__(self) -> str:
        return f"{self.place}, database {self.db}"


def address_of(client: redis.Redis) -> Address | None:
    """Return where a client connects to, or None if it only finds out when it connects (Sentinel)."""
    if hasattr(client.connection_pool, "sentinel_manager"):
        return None
    options = client.connection_pool.connection_kwargs
    host = options.get("host", "localhost")
    host = "localhost" if host in LOCAL_NAMES else host
    place = options["path"] if "path" in options else f"{host}:{options.get('port', 6379)}"
    return Address(str(place), int(options.get("db") or 0))


def outcomes(pipeline: Pipeline) -> list[Outcome]:
    """Send what the pipeline holds, in one round trip: what became of each command."""
    size = len(pipeline)
    try:
        answers = pipeline.execute(raise_on_error=False)
    except redis.RedisError as error:
        # Some may have been carried out: nobody knows.
        return [Unavailable(describe(error)) for _ in range(size)]
    except BaseException:
        # Interrupted before all answers were read: whoever used the connection next would take them for its own.
        pipeline.connection_pool.disconnect(inuse_connections=False)
        raise
    return [_outcome(answer) for answer in answers]


def _outcome(answer: object) -> Outcome:
    if not isinstance(answer, Exception):
        return DELIVERED_OUTCOME
    return Unavailable(describe(answer)) if is_out_of_order(answer) else Retry(describe(answer))


def is_out_of_order(error: Exception) -> bool:
    """Whether the error is the server's, not the command's."""
    return isinstance(error, OUT_OF_ORDER) or answer_in(error).startswith(OUT_OF_ORDER_CODES)


def answer_in(error: Exception) -> str:
    """What the server said, without the words that redis-py puts before it when the command was in a pipeline."""
    return str(error).rpartition("of pipeline caused error: ")[2]


@contextmanager
def as_ours() -> Iterator[None]:
    """The client's errors as the library's: Unavailable is the server's, Refused the command's."""
    try:
        yield
    except redis.RedisError as error:
        if is_out_of_order(error):
            raise Unavailable(describe(error)) from error
        raise Refused(answer_in(error)) from error
