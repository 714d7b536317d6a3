"""An application on RabbitMQ: its commits reach outbox workers, and its own workers take nothing from those."""

from collections import Counter

from tests.rabbitmq.conftest import MakeShop
from tests.rabbitmq.queues import HOUR, consumers_and_messages
from tests.rabbitmq.server import RabbitmqServer


def test_each_of_many_commits_wakes_a_worker_without_a_sweep(make_shop: MakeShop) -> None:
    shop = make_shop(sweep_seconds=HOUR)
    shop.outbox_worker()
    shop.commit_in_turn(100)
    assert Counter(shop.ended()) == Counter(id for (id,) in shop.rows("id"))


def test_what_tasks_emit_in_an_outbox_worker_is_delivered_without_a_sweep(make_shop: MakeShop) -> None:
    shop = make_shop(sweep_seconds=HOUR)
    shop.outbox_worker()
    shop.place_orders(50)
    shop.wait_for(lambda: shop.statuses() == {"delivered": 50}, "all orders are placed, and delivered")


def test_retries_come_with_sweeps(make_shop: MakeShop) -> None:
    shop = make_shop(sweep_seconds=0.3)
    shop.scheduler()
    shop.outbox_worker()
    ids = shop.emit(20, do="fail", times=2)
    shop.wait_until_all("delivered")
    assert Counter(shop.ended()) == Counter(ids)
    assert {attempts for (attempts,) in shop.rows("attempts")} == {3}


def test_the_applications_own_worker_takes_no_message_of_the_outbox(
    make_shop: MakeShop, rabbitmq: RabbitmqServer
) -> None:
    shop = make_shop(sweep_seconds=HOUR)
    own = shop.own_worker()
    shop.place_orders(50)
    queue = shop.settings.queue
    shop.wait_for(lambda: len(shop.rows("id")) == 50, "its actors have emitted")
    shop.wait_for(lambda: consumers_and_messages(rabbitmq, queue)[1] > 0, "a wake-up is waiting")
    assert consumers_and_messages(rabbitmq, queue)[0] == 0
    assert (shop.statuses(), {attempts for (attempts,) in shop.rows("attempts")}) == ({"pending": 50}, {0})

    shop.outbox_worker()
    shop.wait_until_all("delivered")
    assert {attempts for (attempts,) in shop.rows("attempts")} == {1}
    assert not {entry.pid for entry in shop.entries("ended")} & set(own.family())


def test_when_rabbitmq_is_killed_commits_go_on_and_all_is_delivered_when_it_is_back(
    make_shop: MakeShop, rabbitmq: RabbitmqServer
) -> None:
    shop = make_shop(sweep_seconds=0.5)
    shop.scheduler()
    shop.outbox_worker()
    shop.commit_in_turn(10)
    emitter = shop.emitter()
    try:
        emitter.wait_for_more(20)
        rabbitmq.kill()
        emitter.wait_for_more(20)
    finally:
        if not rabbitmq.answers():
            rabbitmq.start()
    emitter.wait_for_more(20)
    assert emitter.stop() == 0
    shop.wait_until_all("delivered")
    assert set(emitter.committed()) <= set(shop.ended())
    shop.commit_in_turn(10)
