"""A request ends at its deadline, whatever the receiver does. The receivers here go on for ever."""

import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from outbox.destinations.outcome import DELIVERED_OUTCOME
from outbox.webhooks.transport.resolver import SocketAddress
from tests.support.receiver import (
    LOOPBACK,
    ClientConnection,
    Receiver,
    answers,
    drips_its_body,
    drips_its_headers,
    never_answers,
)
from tests.support.servers import PATIENCE_SECONDS
from tests.webhooks.deliveries import (
    MakeWebhook,
    deliver,
    deliver_one,
    make_event,
    make_large_event,
    resolving_to,
    resolving_with,
    unavailable,
)

SHORT = 1.0
MOST_WAITING = 200
WAITING = "timed out while waiting for the response"


@contextmanager
def swallowing() -> Iterator[int]:
    """A port where connections are neither refused nor accepted: its queue is full."""
    with ExitStack() as ending:
        listener = ending.enter_context(socket.socket())
        listener.bind((LOOPBACK, 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(MOST_WAITING):
            filler = ending.enter_context(socket.socket())
            filler.settimeout(0.1)
            try:
                filler.connect((LOOPBACK, port))
            except TimeoutError:
                yield port
                return
        assert sys.platform != "linux", "the queue did not fill up"
        pytest.skip("this system's queues don't fill up")


def test_a_receiver_that_never_answers(make_webhook: MakeWebhook) -> None:
    with Receiver(never_answers) as receiver:
        assert unavailable(deliver_one(make_webhook(receiver.url, timeout=SHORT))) == WAITING
        receiver.notices_the_end()


def test_a_receiver_that_drips_its_headers(make_webhook: MakeWebhook) -> None:
    with Receiver(drips_its_headers) as receiver:
        assert unavailable(deliver_one(make_webhook(receiver.url, timeout=SHORT))) == WAITING
        receiver.notices_the_end()


def test_a_receiver_that_sends_a_hint_now_and_then(make_webhook: MakeWebhook) -> None:
    def hint(connection: ClientConnection) -> None:
        connection.read()
        while True:
            connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            connection.pause(SHORT / 10)

    with Receiver(on_connect=hint) as receiver:
        assert unavailable(deliver_one(make_webhook(receiver.url, timeout=SHORT))) == WAITING
        receiver.notices_the_end()


def test_a_body_that_drips_after_2xx_is_not_read_to_its_end(make_webhook: MakeWebhook) -> None:
    with Receiver(drips_its_body) as receiver:
        assert deliver_one(make_webhook(receiver.url, timeout=PATIENCE_SECONDS)) == DELIVERED_OUTCOME
        receiver.notices_the_end()


def test_a_receiver_that_reads_byte_by_byte(make_webhook: MakeWebhook) -> None:
    def sip(connection: ClientConnection) -> None:
        while True:
            connection.read(1)
            connection.pause(0.005)

    with Receiver(on_connect=sip) as receiver:
        # Two seconds are enough to begin with, also where much else goes on.
        outcome = deliver_one(make_webhook(receiver.url, timeout=2), make_large_event())
        assert unavailable(outcome) == "timed out while sending"
        assert receiver.requests == []


def test_a_receiver_that_reads_in_spurts(make_webhook: MakeWebhook) -> None:
    """Each read makes room for another write: a timeout for each write would never be reached."""

    def gulp(connection: ClientConnection) -> None:
        while True:
            connection.read(10_000)
            connection.pause(0.005)

    with Receiver(on_connect=gulp) as receiver:
        # Ten seconds' worth, for the same reason.
        outcome = deliver_one(make_webhook(receiver.url, timeout=2), make_large_event())
        assert unavailable(outcome) == "timed out while sending"
        assert receiver.requests == []


def test_a_port_that_swallows_connections(make_webhook: MakeWebhook) -> None:
    with swallowing() as port:
        error = unavailable(deliver_one(make_webhook(f"http://127.0.0.1:{port}", timeout=SHORT)))
    assert error == f"timed out while connecting to 127.0.0.1, port {port}"


def test_a_handshake_that_gets_nowhere(make_webhook: MakeWebhook) -> None:
    with Receiver(on_connect=ClientConnection.wait_for_the_end) as receiver:
        url = receiver.url.replace("http:", "https:")
        assert unavailable(deliver_one(make_webhook(url, timeout=SHORT))) == "timed out while negotiating TLS"
        receiver.notices_the_end()


def test_a_handshake_that_drips(make_webhook: MakeWebhook) -> None:
    def drip(connection: ClientConnection) -> None:
        connection.drip(b"\x16\x03\x03\x3f\xff\x02\x00\x3f\xfb" + b"\x03" * 1000)  # a hello of 16 kB

    with Receiver(on_connect=drip) as receiver:
        url = receiver.url.replace("http:", "https:")
        assert unavailable(deliver_one(make_webhook(url, timeout=SHORT))) == "timed out while negotiating TLS"
        receiver.notices_the_end()


def test_what_is_left_of_the_lease_is_a_limit_as_well(make_webhook: MakeWebhook) -> None:
    with Receiver(never_answers) as receiver:
        assert unavailable(deliver_one(make_webhook(receiver.url, timeout=3600), seconds=SHORT)) == WAITING


def test_nothing_is_sent_when_no_time_is_left(make_webhook: MakeWebhook) -> None:
    with Receiver() as receiver:
        error = unavailable(deliver_one(make_webhook(receiver.url), seconds=0))
        assert error == "timed out while resolving 127.0.0.1"
        assert receiver.connections == 0


class TestResolving:
    def test_a_resolver_that_hangs(self, make_webhook: MakeWebhook) -> None:
        over = threading.Event()
        lookups = []

        def hang(host: str, port: int) -> list[SocketAddress]:
            lookups.append(host)
            over.wait(PATIENCE_SECONDS)
            return []

        try:
            webhook = resolving_with(make_webhook("http://receiver.example", timeout=SHORT), hang)
            outcomes = deliver(webhook, [make_event() for _ in range(4)], at_once=4)
            assert {unavailable(outcome) for outcome in outcomes} == {"timed out while resolving receiver.example"}
            assert lookups == ["receiver.example"], "all wait for the same one"
        finally:
            over.set()

    def test_each_address_has_its_share(self, make_webhook: MakeWebhook) -> None:
        with swallowing() as black_hole, Receiver() as receiver:
            found = [SocketAddress(socket.AF_INET, (LOOPBACK, port)) for port in (black_hole, receiver.port)]
            webhook = resolving_to(make_webhook("http://receiver.example", timeout=1.0), *found)
            assert deliver_one(webhook) == DELIVERED_OUTCOME

    def test_an_address_that_refuses_is_not_the_last(self, make_webhook: MakeWebhook) -> None:
        with Receiver() as receiver:
            found = [
                SocketAddress(socket.AF_INET6, ("::1", 1, 0, 0)),
                SocketAddress(socket.AF_INET, (LOOPBACK, 1)),
                SocketAddress(socket.AF_INET, (LOOPBACK, receiver.port)),
            ]
            assert deliver_one(resolving_to(make_webhook("http://receiver.example"), *found)) == DELIVERED_OUTCOME

    def test_a_name_without_addresses(self, make_webhook: MakeWebhook) -> None:
        error = unavailable(deliver_one(resolving_to(make_webhook("http://receiver.example"))))
        assert error == "the name has no address while resolving receiver.example"

    def test_a_lookup_that_failed_is_not_remembered(self, make_webhook: MakeWebhook) -> None:
        hosts: list[str] = []

        def fail_once(host: str, port: int) -> list[SocketAddress]:
            hosts.append(host)
            if len(hosts) == 1:
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
            return [SocketAddress(socket.AF_INET, (LOOPBACK, receiver.port))]

        with Receiver() as receiver:
            webhook = resolving_with(make_webhook("http://receiver.example"), fail_once)
            error = unavailable(deliver_one(webhook))
            assert error == "Temporary failure in name resolution while resolving receiver.example"
            assert deliver_one(webhook) == DELIVERED_OUTCOME


def test_a_deadline_that_was_missed_does_not_spoil_the_next_request(make_webhook: MakeWebhook) -> None:
    with Receiver(never_answers, answers()) as receiver:
        webhook = make_webhook(receiver.url, timeout=SHORT)
        assert unavailable(deliver_one(webhook)) == WAITING
        assert deliver_one(webhook) == DELIVERED_OUTCOME
        assert [request.connection for request in receiver.requests] == [1, 2]


def test_a_slow_body_does_not_take_the_whole_timeout(make_webhook: MakeWebhook) -> None:
    """The next events of the same connection wait about a second, not for the whole timeout."""
    with Receiver(drips_its_body, answers()) as receiver:
        webhook = make_webhook(receiver.url, timeout=3600)
        started = time.monotonic()
        assert deliver(webhook, [make_event(), make_event()]) == [DELIVERED_OUTCOME, DELIVERED_OUTCOME]
        assert time.monotonic() - started < PATIENCE_SECONDS
