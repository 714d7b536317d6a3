"""The peers by name."""

from __future__ import annotations

from benchmarks.peers.environment import PeerUnavailable
from benchmarks.peers.peer import Peer, node, python

IN_PYTHON = ("PgQueuer", "procrastinate", "faststream-outbox", "Dramatiq on Redis")

PEERS: dict[str, Peer] = {
    "PgQueuer": Peer(python("use_pgqueuer")),
    "procrastinate": Peer(python("use_procrastinate"), most_events=1_500),
    "faststream-outbox": Peer(python("use_faststream")),
    "Dramatiq on Redis": Peer(python("use_dramatiq"), forks=True),
    "graphile-worker": Peer(node("graphile.mjs")),
    "pg-boss": Peer(node("pgboss.mjs")),
}

__all__ = ["IN_PYTHON", "PEERS", "PeerUnavailable"]
