"""Parse and check the values of settings: each function takes a text of the environment or an argument.

A function returns the value, or raises ValueError with a text that continues the setting's name: "must be …". The
functions `whole_number`, `finite_number` and `one_of` return such a function.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable

# Upper limits: with larger values, sums of times overflow in Python or in a database.
DAY = 86_400.0  # seconds
TEN_YEARS_OF_HOURS = 87_600.0

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

TRUE = ("1", "true", "yes", "on")
FALSE = ("0", "false", "no", "off")

REDIS_SCHEMES = ("redis://", "rediss://", "unix://")


def parse_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text that is not empty")
    return value


def parse_not_blank(value: object) -> str:
    text = parse_text(value)
    if not text.strip():
        raise ValueError("must be a text that is not blank")
    return text


def parse_redis_url(value: object) -> str:
    text = parse_text(value)
    if not text.startswith(REDIS_SCHEMES):
        raise ValueError(
            "must be a URL that begins with redis://, rediss:// or unix://, such as redis://localhost:6379/0"
        )
    return text


def parse_user_name(value: object) -> str:
    text = parse_not_blank(value)
    if ":" in text:
        raise ValueError("must be a name without a colon")
    return text


def parse_truth(value: object) -> bool:
    """Return the truth value that a word such as `true` or `off` stands for; raise ValueError for any other."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in TRUE or word in FALSE:
        return word in TRUE
    raise ValueError("must be true or false")


def whole_number(least: int, most: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        message = f"must be a whole number from {least} to {most}"
        try:
            number = int(str(value).strip())  # by way of text, so that True and 1.5 are refused
        except ValueError:
            raise ValueError(message) from None
        if not least <= number <= most:
            raise ValueError(message)
        return number

    return parse


def finite_number(least: float, most: float) -> Callable[[object], float]:
    def parse(value: object) -> float:
        message = f"must be a number from {least:.12g} to {most:.12g}"
        try:
            number = float(str(value).strip())
        except ValueError:
            raise ValueError(message) from None
        if not (math.isfinite(number) and least <= number <= most):
            raise ValueError(message)
        return number

    return parse


def one_of(*words: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in words:
            raise ValueError("must be one of " + ", ".join(words))
        return str(value)

    return parse


def parse_words(value: object) -> tuple[str, ...]:
    """Return the words of a text, which are separated by commas or white space, or of a list."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ValueError("must be a list of names, separated by commas")
    words = tuple(word for text in texts for word in text.replace(",", " ").split())
    if not words:
        raise ValueError("must be a list of names, separated by commas")
    return words


def parse_networks(value: object) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(word) for word in parse_words(value))
    except ValueError:
        raise ValueError("must be a list of addresses or networks, such as 10.0.0.0/8, separated by commas") from None
