"""Proxies: a webhook uses only the one that it was given."""

import pytest

from outbox.destinations.outcome import DELIVERED_OUTCOME, Retry
from outbox.errors import Unavailable
from tests.support.receiver import Exchange, Receiver, answers
from tests.webhooks.deliveries import MakeWebhook, deliver, deliver_one, make_event, unavailable

VARIABLES = ["http_proxy", "https_proxy", "all_proxy", "no_proxy"]


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_the_environments_proxy_is_not_used_by_default(
    make_webhook: MakeWebhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver() as proxy, Receiver() as receiver:
        for name in VARIABLES[:3]:
            monkeypatch.setenv(name.upper(), f"http://127.0.0.1:{proxy.port}")
        assert deliver_one(make_webhook(receiver.url)) == DELIVERED_OUTCOME
        assert (proxy.connections, receiver.connections) == (0, 1)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_the_environments_proxy_is_used_if_asked_for(
    make_webhook: MakeWebhook, monkeypatch: pytest.MonkeyPatch, variable: str, scheme: str
) -> None:
    with Receiver() as proxy:
        monkeypatch.setenv(variable, f"{scheme}127.0.0.1:{proxy.port}")
        assert deliver_one(make_webhook("http://receiver.example/hook?a=b", proxy="environment")) == DELIVERED_OUTCOME
        assert proxy.only.target == "http://receiver.example:80/hook?a=b"
        assert proxy.only.headers["host"] == "receiver.example"


@pytest.mark.parametrize("excepted", ["127.0.0.1", "*", "localhost,127.0.0.1"])
def test_the_environments_exceptions_are_obeyed(
    make_webhook: MakeWebhook, monkeypatch: pytest.MonkeyPatch, excepted: str
) -> None:
    with Receiver() as proxy, Receiver() as receiver:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", excepted)
        assert deliver_one(make_webhook(receiver.url, proxy="environment")) == DELIVERED_OUTCOME
        assert (proxy.connections, receiver.connections) == (0, 1)


def test_an_environment_without_one_is_no_proxy(make_webhook: MakeWebhook) -> None:
    with Receiver() as receiver:
        assert deliver_one(make_webhook(receiver.url, proxy="environment")) == DELIVERED_OUTCOME


def test_a_given_proxy_is_used_with_its_credentials(make_webhook: MakeWebhook) -> None:
    with Receiver() as proxy:
        address = f"http://me:hush%20hush@127.0.0.1:{proxy.port}"
        webhook = make_webhook("http://you:secret@receiver.example:8080/", proxy=address)
        assert deliver(webhook, [make_event(), make_event()]) == [DELIVERED_OUTCOME] * 2
        assert proxy.connections == 1
        first, _ = proxy.requests
        assert first.target == "http://receiver.example:8080/", "whose password is for the receiver"
        assert first.headers["proxy-authorization"] == "Basic bWU6aHVzaCBodXNo"
        assert first.headers["authorization"] == "Basic eW91OnNlY3JldA=="
        assert "hush" not in repr(webhook)


def test_a_given_proxy_is_used_whatever_the_environment_excepts(
    make_webhook: MakeWebhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with Receiver() as proxy:
        webhook = make_webhook("http://receiver.example/", proxy=f"http://127.0.0.1:{proxy.port}")
        assert deliver_one(webhook) == DELIVERED_OUTCOME
        assert proxy.connections == 1


def test_the_error_of_an_unreachable_proxy_does_not_show_its_password(make_webhook: MakeWebhook) -> None:
    webhook = make_webhook("http://receiver.example/", proxy="http://me:hush@127.0.0.1:1")
    assert unavailable(deliver_one(webhook)) == "Connection refused while connecting to 127.0.0.1, port 1"


@pytest.mark.parametrize("receiver", ["http://receiver.example/", "https://receiver.example/"])
def test_the_password_of_a_proxy_that_repeats_it_is_not_stored(make_webhook: MakeWebhook, receiver: str) -> None:
    def repeat(exchange: Exchange) -> None:
        given = exchange.request.headers["proxy-authorization"]
        answers(f"407 no {given}", f"wrong: {given}".encode())(exchange)

    with Receiver(repeat) as proxy:
        outcome = deliver_one(make_webhook(receiver, proxy=f"http://me:hush%20hush@127.0.0.1:{proxy.port}"))
    assert isinstance(outcome, Retry | Unavailable)
    assert "407" in outcome.error
    assert "bWU6aHVzaCBodXNo" not in outcome.error
