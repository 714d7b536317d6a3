"""An application on a Redis that fails over: its commits reach outbox workers before, meanwhile and afterwards."""

import signal
from collections import Counter
from functools import partial

from tests.sentinel.conftest import MakeShop, Shop
from tests.sentinel.server import SentinelServers

HOUR = 3_600  # so seldom that a sweep explains nothing


def test_each_of_many_commits_wakes_a_worker_without_a_sweep(make_shop: MakeShop) -> None:
    shop = make_shop(sweep_seconds=HOUR)
    shop.outbox_worker()
    shop.commit_in_turn(100)
    assert Counter(shop.ended()) == Counter(id for (id,) in shop.rows("id"))


def test_the_applications_own_worker_takes_no_message_of_the_outbox(make_shop: MakeShop) -> None:
    shop = make_shop(sweep_seconds=HOUR)
    own = shop.own_worker()
    shop.place_orders(50)
    shop.wait_for(lambda: len(shop.rows("id")) == 50, "its actors have emitted")
    shop.wait_for(lambda: shop.messages_in(shop.settings.queue) > 0, "a wake-up is waiting")
    assert shop.queues_of_own_worker() == "shop"
    assert (shop.statuses(), {attempts for (attempts,) in shop.rows("attempts")}) == ({"pending": 50}, {0})

    shop.outbox_worker()
    shop.wait_until_all("delivered")
    assert Counter(shop.ended()) == Counter(id for (id,) in shop.rows("id"))
    assert not {entry.pid for entry in shop.entries("ended")} & set(own.family())


def test_when_the_master_is_killed_commits_go_on_and_wake_ups_and_sweeps_come_through_its_successor(
    make_shop: MakeShop, servers: SentinelServers
) -> None:
    shop = make_shop(sweep_seconds=HOUR)
    shop.outbox_worker()
    scheduler = shop.scheduler_every(0.3)
    deliver_by_sweeps(shop)
    scheduler.signal(signal.SIGSTOP)  # from here on only wake-ups reach the worker
    emitter = shop.emitter()
    emitter.wait_for_more(20)
    servers.fail_over()
    for _ in range(20):  # more than there can be wake-ups that were sent before, and reached the replica
        emitter.wait_for_more(1)
        last = emitter.committed()[-1]
        shop.wait_for(partial(shop.has_ended, last), "the emitter's wake-ups arrive again")
    assert emitter.stop() == 0
    shop.wait_until_all("delivered")
    assert set(emitter.committed()) <= set(shop.ended())

    scheduler.signal(signal.SIGCONT)
    deliver_by_sweeps(shop)
    assert Counter(shop.ended()) == Counter(id for (id,) in shop.rows("id"))


def deliver_by_sweeps(shop: Shop) -> None:
    """Commit an event without a wake-up, and wait until it is delivered."""
    shop.emit()
    shop.wait_until_all("delivered")
