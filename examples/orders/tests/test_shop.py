"""What the shop does, from an order to its parcel."""

import pytest

import outbox
from examples.orders import services, shop
from outbox.testing import advance, assert_emitted, assert_nothing_emitted, capture, deliver, make_event, run_all


def test_an_order_is_charged_confirmed_and_packed() -> None:
    order = shop.place_order("Ada", "teapot")
    assert_emitted("order.placed", aggregate=("Order", order.id), payload={"customer": "Ada"})
    deliver()  # the order's event
    deliver()  # the event that `charge` has emitted
    assert shop.Order.get_by_id(order.id).paid
    assert (shop.cards.charged, shop.mail.sent, shop.warehouse.packed) == ({order.id: 1},) * 3


def test_an_order_that_is_sold_out_leaves_no_event() -> None:
    with capture() as events, pytest.raises(shop.SoldOut):
        shop.place_order("Ada", "samovar")
    assert_nothing_emitted(within=events)


def test_a_card_that_timed_out_is_charged_a_minute_later(monkeypatch: pytest.MonkeyPatch) -> None:
    order = shop.place_order("Ada", "teapot")
    with monkeypatch.context() as down:
        down.setattr(shop.cards, "charge", _time_out)
        deliver(raise_errors=False)
    assert shop.cards.charged == {}
    advance(minutes=1)
    run_all()
    assert (shop.cards.charged, shop.mail.sent) == ({order.id: 1}, {order.id: 1})


def test_a_card_that_is_declined_is_not_tried_again() -> None:
    event = make_event("order.placed", {"customer": "Ada"}, aggregate=("Order", _order_with_a_bad_card().id))
    with pytest.raises(outbox.Reject, match="was declined"):
        shop.charge(event)
    assert_nothing_emitted("order.paid")


def test_a_mail_server_that_is_down_costs_the_order_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop, "mail", services.MailServer(down_seconds=60))
    with pytest.raises(outbox.Unavailable, match="is down"):
        shop.confirm(make_event("order.placed", {"customer": "Ada"}, aggregate=("Order", 1)))


def _time_out(*arguments: object, **options: object) -> None:
    raise TimeoutError("the card provider did not respond")


def _order_with_a_bad_card() -> shop.Order:
    """Place orders until one has a number whose card is declined: every fifth."""
    while (order := shop.place_order("Ada", "teapot")).id % 5 or order.id % 4 == 0:
        pass
    return order
