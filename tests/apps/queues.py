"""For actors that are asked what their worker consumes."""

from pathlib import Path

import dramatiq


def write_queues(path: str) -> None:
    """Write down which queues this process consumes; in one step."""
    file = Path(path)
    file.with_suffix(".new").write_text(" ".join(sorted(dramatiq.get_broker().get_declared_queues())))
    file.with_suffix(".new").rename(file)
