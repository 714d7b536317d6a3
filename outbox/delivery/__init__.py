"""Claim, dispatch and settle, and the leases that protect them. `deliver` is where to begin reading.

The words that the modules here use:

- *due*: the event's `next_attempt_at` has passed, by the database's clock.
- *claim*: lease due events to this worker, in one statement. What one claim returns is a *batch*.
- *lease*: the right to settle an event, until a time. The *lease keeper* renews the leases of batches in flight.
- *plan*: find the destinations that an event goes to (its *audience*), and those of them that are due.
- *dispatch*: give each destination its *share* of a batch, each in a thread of its own.
- *settle*: write the outcomes of finished events into the table, if the lease is still ours (the *fence*).
- *close*: settle what is finished, and *give back* what has not begun, so that another worker can claim it.
- *time slice*: a batch has about a second. Then it is closed, although a slow call may still be running.
- *drain*: deliver batch after batch until one is not full. A *wake-up* is a message that asks a worker for a drain; a
  *sweep* is the same message, sent by the scheduler.
- *quarantine*: an event whose lease expired may have killed its worker, so it is delivered alone.
- *progress*: the state of each destination of an unfinished event (`storage/progress.py`).
"""
