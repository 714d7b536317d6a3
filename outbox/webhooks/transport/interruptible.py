"""Keep waits short enough to be interrupted.

Dramatiq ends a call that exceeds its time limit, or that runs at a shutdown, by raising an exception in its thread from
another thread. The exception takes effect only between two bytecode instructions, not while the thread blocks.
"""

from __future__ import annotations

# No wait and no socket operation of a transport blocks for longer than this.
LONGEST_BLOCK_SECONDS = 0.5
