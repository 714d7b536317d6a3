"""An application that chooses its queue in a module, not in the environment; what it emits first is a chain."""

import outbox

outbox.configure(queue="mine")

import tests.apps.chain  # noqa: E402, F401
