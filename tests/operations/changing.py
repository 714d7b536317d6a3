"""Run the operators' actions on the events of an Outbox."""

from collections.abc import Generator
from typing import Any

from outbox.core import Outbox
from outbox.operations import actions, apply_action
from outbox.operations.actions import Action
from outbox.operations.filters import Filter

ALL = Filter()


def apply(box: Outbox, action: Action, which: Filter = ALL, **options: Any) -> Generator[int]:
    """Run an action batch by batch; yield the number of changed events so far."""
    return apply_action.apply(box.dialect, box.notifier.notify_after_commit, action, which, **options)


def change_all(box: Outbox, action: Action, which: Filter = ALL, **options: Any) -> int:
    """Run an action to its end; return the number of changed events."""
    return max(apply(box, action, which, **options), default=0)


def count_all(box: Outbox, action: Action, which: Filter = ALL) -> int:
    return apply_action.count_all(box.dialect, action, which)


def replay_to(box: Outbox, destination: str) -> Action:
    return actions.replay_to(box.dialect, box.registry, destination)
