"""An application on a Redis that fails over: its commits reach outbox workers before, meanwhile and afterwards."""

import signal
from collections import Counter

from tests.sentinel.conftest import MakeShop
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
    shop.outbox_worker()
    shop.wait_until_all("delivered")
    assert {attempts for (attempts,) in shop.rows("attempts")} == {1}
    assert not {entry.pid for entry in shop.entries("ended")} & set(own.family())


def test_when_the_master_is_killed_commits_go_on_and_workers_hear_of_them_from_its_successor(
    make_shop: MakeShop, servers: SentinelServers
) -> None:
    shop = make_shop(sweep_seconds=0.5)
    scheduler = shop.scheduler()
    shop.outbox_worker()
    emitter = shop.emitter()
    emitter.wait_for_more(20)
    servers.fail_over()
    emitter.wait_for_more(20)
    assert emitter.stop() == 0
    shop.wait_until_all("delivered")
    assert Counter(shop.ended()) == Counter(emitter.committed())

    scheduler.signal(signal.SIGTERM)
    assert scheduler.wait() == 0
    shop.commit_in_turn(20)  # without sweeps: it is wake-ups that reach the worker again
