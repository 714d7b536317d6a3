"""`python -m examples.orders`: the shop, the workers and the scheduler in one process, on a temporary SQLite file."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

PAUSE_SECONDS = 0.4
KEEP_PAUSE_SECONDS = 2.0
FINISH_SECONDS = 60.0
POLL_SECONDS = 0.1

# Retries after one second instead of a minute, so that you can watch them.
SETTINGS = {
    "OUTBOX_BACKOFF_BASE_SECONDS": "1",
    "OUTBOX_BACKOFF_JITTER": "false",
    "OUTBOX_SWEEP_SECONDS": "0.5",
}


def main() -> int:
    options = _options()
    _log(verbose=options.verbose)
    with tempfile.TemporaryDirectory(prefix="outbox-orders-") as folder:
        _set_environment(Path(folder))
        return _run(options.orders, keep=options.keep)


def _run(orders: int, *, keep: bool) -> int:
    # Imported here: the shop opens the database that the environment names.
    from examples.orders import shop
    from examples.orders.customers import Customers
    from examples.orders.summary import summarize, unfinished
    from outbox.cli.up import workers_and_scheduler
    from outbox.stop_signal import stop_on_signal

    shop.open_shop()
    customers = Customers()
    stopped = stop_on_signal()
    with workers_and_scheduler(threads=4):
        customers.visit(orders, PAUSE_SECONDS, stopped)
        if keep:
            customers.visit(None, KEEP_PAUSE_SECONDS, stopped)
        print("\nThe shop is closed. Waiting for the deliveries that are left.\n", flush=True)
        ends_at = time.monotonic() + FINISH_SECONDS
        while unfinished() and time.monotonic() < ends_at:
            time.sleep(POLL_SECONDS)
    summary = summarize(customers)
    print(f"\n{summary}\n")
    if problems := summary.problems():
        print("The numbers don't agree:", *problems, sep="\n  ")
        return 1
    print("The numbers agree.")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 dev.py run", description="A small shop on the outbox.")
    parser.add_argument("--orders", type=int, default=16, help="place so many orders (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="continue to place orders, until Ctrl-C")
    parser.add_argument("--verbose", action="store_true", help="also show the log of the outbox")
    return parser.parse_args()


def _log(*, verbose: bool) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(relativeCreated)6d ms  %(message)s", stream=sys.stdout)
    logging.getLogger("shop").setLevel(logging.INFO)
    # The shop logs each retry itself.
    logging.getLogger("outbox").setLevel(logging.INFO if verbose else logging.ERROR)


def _set_environment(folder: Path) -> None:
    """Set only the demo's own settings, so that it needs no server, whatever is set in your environment."""
    for name in [name for name in os.environ if name.startswith("OUTBOX_")]:
        del os.environ[name]
    os.environ.update(SETTINGS, OUTBOX_DATABASE_URL=f"sqlite:///{folder / 'shop.db'}")


if __name__ == "__main__":
    sys.exit(main())
