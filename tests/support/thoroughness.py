"""How many examples a generated test tries: the same few each time or, on request, many that nobody has seen yet."""

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = "OUTBOX_TEST_EXAMPLES"
# For whoever wants to know that it fails, not how: finding the shortest way to it can take minutes.
UNSHRUNK = "OUTBOX_TEST_UNSHRUNK"


def thorough(examples: int, *, at_most: int | None = None, **others: Any) -> settings:
    """So many examples, always the same; with OUTBOX_TEST_EXAMPLES=5000 that many, or at most so many, at random."""
    asked = os.environ.get(EXAMPLES)
    skipped = {Phase.shrink, Phase.explain} if UNSHRUNK in os.environ else set()
    return settings(
        max_examples=examples if asked is None else min(int(asked), int(asked) if at_most is None else at_most),
        derandomize=asked is None,
        print_blob=asked is not None,
        phases=[phase for phase in Phase if phase not in skipped],
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        **others,
    )
