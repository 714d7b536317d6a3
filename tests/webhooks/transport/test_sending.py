"""How requests are sent: over kept connections, and in as many threads as the receiver needs."""

import ctypes
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Event as Gate
from typing import Any

import pytest

from outbox.destinations.outcome import DELIVERED_OUTCOME
from outbox.destinations.protocol import Lease
from outbox.events.event import Event
from outbox.webhooks.transport.httpcore_threads import response_times
from outbox.webhooks.transport.httpcore_threads.response_times import ResponseTimes
from outbox.webhooks.transport.protocol import NotSent, WebhookRequest
from outbox.webhooks.webhook import Webhook
from tests.support.receiver import ClientConnection, Exchange, Receiver, Reply, answers, hangs_up, never_answers, resets
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import becomes_true, passes
from tests.webhooks.deliveries import (
    MakeWebhook,
    ReversingTransport,
    deliver,
    deliver_one,
    make_event,
    retried,
    unavailable,
)


def senders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "outbox-send-hook"]


def waits_for(gate: Gate) -> Reply:
    def reply(exchange: Exchange) -> None:
        passes(gate)
        answers()(exchange)

    return reply


@contextmanager
def opening(gate: Gate, receiver: Receiver, under_way: int) -> Iterator[None]:
    """Respond as soon as so many requests are waiting."""

    def watch() -> None:
        becomes_true(lambda: receiver.under_way == under_way)
        gate.set()

    with ThreadPoolExecutor(1) as executor:
        watching = executor.submit(watch)
        yield
        watching.result()


class Supply:
    """Events that count how many of them have been taken."""

    def __init__(self, size: int) -> None:
        self.events = [make_event(seq=number) for number in range(size)]
        self.taken = 0
        self.threads: set[threading.Thread] = set()

    def __iter__(self) -> Iterator[Event]:
        for event in self.events:
            self.taken += 1
            self.threads.add(threading.current_thread())
            yield event


class TestThreads:
    def test_a_slow_receiver_gets_as_many_at_once_as_it_may(self, make_webhook: MakeWebhook) -> None:
        gate = Gate()
        with Receiver(waits_for(gate)) as receiver:
            with opening(gate, receiver, 4):
                outcomes = deliver(make_webhook(receiver.url), [make_event() for _ in range(20)], at_once=4)
            assert outcomes == [DELIVERED_OUTCOME] * 20
            assert receiver.connections == 4  # each of them with one request at a time

    @pytest.mark.parametrize(("allowed", "concurrency"), [(2, 8), (8, 2)])
    def test_never_more_than_the_lease_and_the_webhook_allow(
        self, make_webhook: MakeWebhook, allowed: int, concurrency: int
    ) -> None:
        gate = Gate()
        with Receiver(waits_for(gate)) as receiver:
            with opening(gate, receiver, 2):
                webhook = make_webhook(receiver.url, concurrency=concurrency)
                deliver(webhook, [make_event() for _ in range(20)], at_once=allowed)
            assert receiver.connections == 2

    def test_one_at_once_is_sent_by_the_calling_thread(self, make_webhook: MakeWebhook) -> None:
        with Receiver() as receiver:
            answers_ = make_webhook(receiver.url).deliver([make_event(), make_event()], Lease.lasting(60))
            next(iter(answers_))
            assert senders() == []

    def test_they_end_with_the_batch(self, make_webhook: MakeWebhook) -> None:
        with Receiver() as receiver:
            deliver(make_webhook(receiver.url), [make_event() for _ in range(20)], at_once=4)
            assert senders() == []

    def test_no_event_is_taken_before_it_can_be_sent(self, make_webhook: MakeWebhook) -> None:
        gate = Gate()
        supply = Supply(10)
        with Receiver(waits_for(gate)) as receiver:
            outcomes: list[object] = []

            def run() -> None:
                outcomes.extend(make_webhook(receiver.url).deliver(supply, Lease.lasting(60, at_once=3)))

            runner = threading.Thread(target=run)
            runner.start()
            becomes_true(lambda: receiver.under_way == 3)
            assert supply.taken == 3
            gate.set()
            runner.join()
            assert len(outcomes) == supply.taken == 10
            assert supply.threads == {runner}, "whoever hands out events is asked in one thread only"

    def test_a_result_is_yielded_before_the_next_event_is_taken(self, make_webhook: MakeWebhook) -> None:
        """After a result the caller may decide to give no more events."""
        supply = Supply(3)
        with Receiver() as receiver:
            for number, _ in enumerate(make_webhook(receiver.url).deliver(supply, Lease.lasting(60, at_once=1)), 1):
                assert supply.taken == number

    @pytest.mark.parametrize("client", ["httpx"])
    def test_closing_the_generator_stops_the_sending(self, make_webhook: MakeWebhook) -> None:
        gate = Gate()
        supply = Supply(10)
        with Receiver(answers(), waits_for(gate)) as receiver:
            deliveries = make_webhook(receiver.url).deliver(supply, Lease.lasting(60, at_once=3))
            next(deliveries)
            deliveries.close()  # type: ignore[attr-defined]
            gate.set()
            becomes_true(lambda: senders() == [])
            assert len(receiver.requests) == supply.taken < 10

    @pytest.mark.parametrize("client", ["curl"])
    def test_closing_it_also_ends_the_requests_that_libcurl_has_in_flight(self, make_webhook: MakeWebhook) -> None:
        """No other thread could continue them. The next batch reuses the idle connections."""
        supply = Supply(10)
        with Receiver(answers(), never_answers) as receiver:
            webhook = make_webhook(receiver.url)
            deliveries = webhook.deliver(supply, Lease.lasting(60, at_once=3))
            next(deliveries)
            deliveries.close()  # type: ignore[attr-defined]
            receiver.notices_the_end(of=2)
            assert len(receiver.requests) <= supply.taken == 3
            receiver.then(answers())
            answered_on = receiver.requests[0].connection
            assert deliver(webhook, [make_event() for _ in range(5)]) == [DELIVERED_OUTCOME] * 5
            assert [request.connection for request in receiver.requests[-5:]] == [answered_on] * 5

    def test_nothing_to_send_starts_nothing(self, make_webhook: MakeWebhook) -> None:
        with Receiver() as receiver:
            assert deliver(make_webhook(receiver.url), [], at_once=8) == []
            assert receiver.connections == 0

    @pytest.mark.parametrize("client", ["httpx"])
    @pytest.mark.parametrize("room", [0, 1, 2])
    def test_if_no_more_threads_can_be_started_the_running_ones_send_everything(
        self, make_webhook: MakeWebhook, monkeypatch: pytest.MonkeyPatch, room: int
    ) -> None:
        started: list[threading.Thread] = []
        start = threading.Thread.start

        def limited(thread: threading.Thread) -> None:
            if thread.name == "outbox-send-hook":
                if len(started) == room:
                    raise RuntimeError("can't start new thread")
                started.append(thread)
            start(thread)

        def take_a_moment(exchange: Exchange) -> None:
            exchange.connection.pause(0.02)
            answers()(exchange)

        with Receiver(take_a_moment) as receiver:
            monkeypatch.setattr(threading.Thread, "start", limited)
            outcomes = deliver(make_webhook(receiver.url), [make_event() for _ in range(6)], at_once=4)
        if room:
            assert outcomes == [DELIVERED_OUTCOME] * 6
            assert receiver.most_at_once == room
        else:
            assert [unavailable(outcome) for outcome in outcomes] == ["not sent: can't start new thread"] * 6

    def test_two_batches_at_once_get_their_own_results(self, make_webhook: MakeWebhook) -> None:
        with Receiver() as receiver:
            webhook = make_webhook(receiver.url)
            done: list[list[object]] = []

            def run() -> None:
                done.append(list(deliver(webhook, [make_event() for _ in range(30)], at_once=2)))

            threads = [threading.Thread(target=run) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert done == [[DELIVERED_OUTCOME] * 30] * 3


class Recording:
    """Events that note how many threads existed when each of them was taken."""

    def __init__(self, size: int) -> None:
        self.events = [make_event() for _ in range(size)]
        self.crew = 0

    def __iter__(self) -> Iterator[Event]:
        for event in self.events:
            yield event
            self.crew = max(self.crew, len(senders()))


@pytest.mark.parametrize("client", ["httpx"])
class TestAFastReceiver:
    """If a receiver responds sooner than a thread could be given the request, the caller's thread sends."""

    @pytest.fixture
    def make_webhook(self, make_webhook: MakeWebhook) -> MakeWebhook:
        """Make webhooks with long limits, so that load on the machine makes no fast receiver slow."""

        def make(url: str) -> Webhook:
            webhook = make_webhook(url)
            transport: Any = webhook.transport
            transport._response_times = ResponseTimes(fast_seconds=0.3, costly_seconds=0.3)
            return webhook

        return make

    def known_as_quick(self, make_webhook: MakeWebhook, receiver: Receiver) -> Webhook:
        webhook = make_webhook(receiver.url)
        deliver(webhook, [make_event() for _ in range(response_times.FEWEST_IN_A_ROW)], at_once=4)
        return webhook

    def test_is_served_by_the_calling_thread_once_it_is_known_to_be_fast(self, make_webhook: MakeWebhook) -> None:
        with Receiver() as receiver:
            webhook = self.known_as_quick(make_webhook, receiver)
            events = Recording(10)
            assert len(list(webhook.deliver(events, Lease.lasting(60, at_once=4)))) == 10
            assert events.crew == 0

    def test_is_served_by_threads_before_that(self, make_webhook: MakeWebhook) -> None:
        with Receiver() as receiver:
            webhook = make_webhook(receiver.url)
            deliver(webhook, [make_event() for _ in range(response_times.FEWEST_IN_A_ROW - 1)], at_once=4)
            events = Recording(10)
            assert len(list(webhook.deliver(events, Lease.lasting(60, at_once=4)))) == 10
            assert events.crew > 0

    def test_that_becomes_slow_is_served_by_threads(self, make_webhook: MakeWebhook) -> None:
        gate = Gate()

        def take_a_while(exchange: Exchange) -> None:
            exchange.connection.pause(0.4)
            answers()(exchange)

        with Receiver() as receiver:
            webhook = self.known_as_quick(make_webhook, receiver)
            receiver.then(take_a_while, waits_for(gate))
            with opening(gate, receiver, 4):
                assert deliver(webhook, [make_event() for _ in range(9)], at_once=4) == [DELIVERED_OUTCOME] * 9

    def test_whose_connection_is_closed_is_served_by_threads(self, make_webhook: MakeWebhook) -> None:
        """To make a new connection may take long."""
        with Receiver() as receiver:
            webhook = self.known_as_quick(make_webhook, receiver)
            webhook.close()
            events = Recording(3)
            assert len(list(webhook.deliver(events, Lease.lasting(60, at_once=4)))) == 3
            assert events.crew > 0


class TestResponseTimes:
    def test_a_slow_response_ends_the_row_of_fast_ones(self) -> None:
        measured = ResponseTimes()
        for _ in range(response_times.FEWEST_IN_A_ROW):
            assert not measured.are_fast
            measured.record(response_times.FAST_SECONDS)
        assert measured.are_fast
        measured.record(response_times.FAST_SECONDS * 1.01)
        assert not measured.are_fast

    def test_each_costly_response_doubles_how_many_fast_ones_are_needed(self) -> None:
        measured = ResponseTimes()
        for needed in (20, 40, 80, 160, 320, 640, 1280, 1280):
            for _ in range(needed):
                assert not measured.are_fast
                measured.record(0)
            assert measured.are_fast
            measured.record(response_times.COSTLY_SECONDS)

    def test_a_slow_response_that_was_not_costly_doubles_nothing(self) -> None:
        measured = ResponseTimes()
        for _ in range(3):
            for _ in range(response_times.FEWEST_IN_A_ROW):
                measured.record(0)
            assert measured.are_fast
            measured.record(response_times.COSTLY_SECONDS * 0.99)

    def test_a_costly_response_in_a_thread_doubles_nothing(self) -> None:
        measured = ResponseTimes()
        measured.record(response_times.COSTLY_SECONDS)
        for _ in range(response_times.FEWEST_IN_A_ROW):
            measured.record(0)
        assert measured.are_fast


class TestInterrupts:
    """Dramatiq raises a time limit or a shutdown in this thread from another one: that ends the wait, and soon."""

    class Interrupt(BaseException):
        pass

    @pytest.mark.parametrize("at_once", [1, 4])
    def test_they_end_the_wait_for_a_receiver(self, make_webhook: MakeWebhook, at_once: int) -> None:
        ended: list[type[BaseException]] = []

        def run() -> None:
            try:
                deliver(webhook, [make_event()], at_once=at_once, seconds=3600)
            except self.Interrupt as error:
                ended.append(type(error))

        with Receiver(never_answers, answers()) as receiver:
            webhook = make_webhook(receiver.url, timeout=3600)
            thread = threading.Thread(target=run)
            thread.start()
            becomes_true(lambda: receiver.under_way == 1)
            raise_in(thread, self.Interrupt)
            thread.join(PATIENCE_SECONDS)
            assert ended == [self.Interrupt]
            assert deliver(webhook, [make_event(), make_event()], at_once=at_once) == [DELIVERED_OUTCOME] * 2


def raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    """Raise an exception in another thread, as Dramatiq does."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))


class TestConnections:
    def test_one_is_kept_within_a_batch_and_between_batches(self, make_webhook: MakeWebhook) -> None:
        with Receiver() as receiver:
            webhook = make_webhook(receiver.url)
            for at_once in (1, 1, 2):
                deliver(webhook, [make_event(), make_event()], at_once=at_once)
            assert len(receiver.requests) == 6
            assert receiver.connections <= 2

    def test_one_at_once_needs_only_one(self, make_webhook: MakeWebhook) -> None:
        with Receiver() as receiver:
            webhook = make_webhook(receiver.url)
            for _ in range(3):
                deliver(webhook, [make_event() for _ in range(5)])
            assert receiver.connections == 1

    def test_a_body_that_is_not_read_to_its_end_costs_the_connection(self, make_webhook: MakeWebhook) -> None:
        with Receiver(answers(200, b"x" * 200_000)) as receiver:
            assert deliver(make_webhook(receiver.url), [make_event(), make_event()]) == [DELIVERED_OUTCOME] * 2
            assert receiver.connections == 2

    def test_a_receiver_that_asks_for_it_gets_a_new_one_each_time(self, make_webhook: MakeWebhook) -> None:
        with Receiver(answers(connection="close")) as receiver:
            assert deliver(make_webhook(receiver.url), [make_event(), make_event()]) == [DELIVERED_OUTCOME] * 2
            assert receiver.connections == 2

    def test_one_that_the_receiver_has_closed_meanwhile_is_not_used(self, make_webhook: MakeWebhook) -> None:
        def answer_and_close(exchange: Exchange) -> None:
            answers()(exchange)
            hangs_up(exchange)

        with Receiver(answer_and_close) as receiver:
            webhook = make_webhook(receiver.url)
            assert deliver_one(webhook) == DELIVERED_OUTCOME
            receiver.notices_the_end()
            assert deliver_one(webhook) == DELIVERED_OUTCOME
            assert len(receiver.requests) == 2

    @pytest.mark.parametrize("fate", [hangs_up, resets])
    def test_one_that_is_closed_while_the_request_is_sent_is_replaced_immediately(
        self, make_webhook: MakeWebhook, fate: Reply
    ) -> None:
        with Receiver(answers(), fate, answers()) as receiver:
            webhook = make_webhook(receiver.url)
            assert deliver(webhook, [make_event(), make_event()]) == [DELIVERED_OUTCOME, DELIVERED_OUTCOME]
            first, second, again = receiver.requests
            assert [request.connection for request in receiver.requests] == [1, 1, 2]
            assert again.body == second.body != first.body
            assert again.headers == second.headers

    def test_it_is_replaced_only_once(self, make_webhook: MakeWebhook) -> None:
        with Receiver(answers(), hangs_up) as receiver:
            _, outcome = deliver(make_webhook(receiver.url), [make_event(), make_event()])
            unavailable(outcome)
            assert len(receiver.requests) == 3

    def test_it_is_replaced_by_a_new_one_even_if_others_are_kept(self, make_webhook: MakeWebhook) -> None:
        with Receiver() as receiver:
            webhook = self.with_kept(4, make_webhook, receiver)
            receiver.then(hangs_up)
            unavailable(deliver_one(webhook))
            first, again = receiver.requests[4:]
            assert (first.body, receiver.connections) == (again.body, 5)

    def test_they_are_as_many_as_were_needed_at_once_and_are_used_again(self, make_webhook: MakeWebhook) -> None:
        with Receiver() as receiver:
            webhook = self.with_kept(8, make_webhook, receiver)
            gate = Gate()
            receiver.then(waits_for(gate))
            with opening(gate, receiver, 8):
                deliver(webhook, [make_event() for _ in range(8)], at_once=8)
            assert receiver.connections == 8

    def test_they_are_kept_also_while_fewer_and_fewer_are_needed(self, make_webhook: MakeWebhook) -> None:
        turn = threading.Semaphore(0)

        def wait(exchange: Exchange) -> None:
            assert turn.acquire(timeout=PATIENCE_SECONDS)
            answers()(exchange)

        def begin() -> None:
            becomes_true(lambda: receiver.under_way == 8)
            turn.release()

        with Receiver(wait) as receiver, ThreadPoolExecutor(1) as executor:
            webhook = make_webhook(receiver.url)
            beginning = executor.submit(begin)
            for _ in webhook.deliver([make_event() for _ in range(8)], Lease.lasting(60, at_once=8)):
                turn.release()
            beginning.result()
            assert (receiver.connections, receiver.hung_up) == (8, 0)
            turn.release(8)
            deliver(webhook, [make_event()])
            assert (receiver.connections, receiver.hung_up) == (8, 0)

    def with_kept(self, number: int, make_webhook: MakeWebhook, receiver: Receiver) -> Webhook:
        """Return a webhook with so many idle connections."""
        gate = Gate()
        webhook = make_webhook(receiver.url)
        receiver.then(waits_for(gate))
        with opening(gate, receiver, number):
            deliver(webhook, [make_event() for _ in range(number)], at_once=number)
        assert receiver.connections == number
        return webhook

    def test_a_new_one_that_fails_is_not_replaced(self, make_webhook: MakeWebhook) -> None:
        with Receiver(hangs_up) as receiver:
            unavailable(deliver_one(make_webhook(receiver.url)))
            assert len(receiver.requests) == 1

    @pytest.mark.parametrize(
        ("client", "beginning"), [("httpx", b"HTTP/1.1 20"), ("curl", b"HTTP/1.1 200 OK\r\n")]
    )  # libcurl tells what it has received line by line
    def test_one_on_which_a_response_had_begun_is_not_replaced(
        self, make_webhook: MakeWebhook, beginning: bytes
    ) -> None:
        def begin(exchange: Exchange) -> None:
            exchange.send(beginning)
            exchange.connection.reset()

        with Receiver(answers(), begin) as receiver:
            _, outcome = deliver(make_webhook(receiver.url), [make_event(), make_event()])
            unavailable(outcome)
            assert len(receiver.requests) == 2

    def test_one_that_timed_out_is_not_replaced(self, make_webhook: MakeWebhook) -> None:
        with Receiver(answers(), never_answers) as receiver:
            _, outcome = deliver(make_webhook(receiver.url, timeout=0.3), [make_event(), make_event()])
            assert unavailable(outcome) == "timed out while waiting for the response"
            assert len(receiver.requests) == 2

    def test_bytes_after_a_response_are_not_taken_for_the_next_one(self, make_webhook: MakeWebhook) -> None:
        refuses, delivered = (
            b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        )
        with Receiver(lambda exchange: exchange.send(refuses + delivered)) as receiver:
            outcomes = deliver(make_webhook(receiver.url), [make_event(), make_event()])
            assert [retried(outcome) for outcome in outcomes] == ["HTTP 500 No"] * 2
            assert len(receiver.requests) == 2

    def test_a_body_where_there_should_be_none_does_not_spoil_the_next_response(
        self, make_webhook: MakeWebhook
    ) -> None:
        with Receiver(answers(204, b"thank you")) as receiver:
            assert deliver(make_webhook(receiver.url), [make_event(), make_event()]) == [DELIVERED_OUTCOME] * 2
            assert len(receiver.requests) == 2

    def test_those_that_are_not_needed_any_more_are_closed(self, make_webhook: MakeWebhook) -> None:
        gate = Gate()
        with Receiver(waits_for(gate)) as receiver:
            webhook = make_webhook(receiver.url)
            with opening(gate, receiver, 3):
                deliver(webhook, [make_event() for _ in range(3)], at_once=3)
            assert receiver.connections == 3
            webhook.close()
            receiver.notices_the_end(of=3)
            assert deliver_one(webhook) == DELIVERED_OUTCOME

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the child does nothing that needs threads
    def test_a_forked_process_makes_its_own(self, make_webhook: MakeWebhook) -> None:
        with Receiver() as receiver:
            webhook = make_webhook(receiver.url)
            deliver_one(webhook)
            child = os.fork()
            if child == 0:
                os._exit(0 if deliver_one(webhook) == DELIVERED_OUTCOME else 1)
            assert os.waitpid(child, 0)[1] == 0
            deliver_one(webhook)
            assert [request.connection for request in receiver.requests] == [1, 2, 1]


class TestEventsThatCanNotBeSent:
    def test_one_does_not_stop_the_others(self, make_webhook: MakeWebhook) -> None:
        events = [unwritable(), make_event(), unwritable(), make_event(), unwritable()]
        with Receiver() as receiver:
            for at_once in (1, 3):
                outcomes = deliver(make_webhook(receiver.url), events, at_once=at_once)
                assert outcomes[1] == outcomes[3] == DELIVERED_OUTCOME
                for outcome in (outcomes[0], outcomes[2], outcomes[4]):
                    assert retried(outcome).startswith("not sent: JSONDecodeError")

    def test_all_events_of_a_batch_may_be_such(self, make_webhook: MakeWebhook) -> None:
        with Receiver() as receiver:
            outcomes = deliver(make_webhook(receiver.url), [unwritable(), unwritable()])
            assert all(retried(outcome) for outcome in outcomes)
            assert receiver.connections == 0


def unwritable() -> Event:
    event = make_event()
    event._headers_text = "{"
    return event


def test_head_and_body_arrive_in_one_piece(make_webhook: MakeWebhook) -> None:
    pieces: list[bytes] = []

    def listen(connection: ClientConnection) -> None:
        pieces.append(connection.read())
        connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        connection.wait_for_the_end()

    with Receiver(on_connect=listen) as receiver:
        event = make_event()
        assert deliver_one(make_webhook(receiver.url), event) == DELIVERED_OUTCOME
        assert event.body in pieces[0]


def test_a_large_body_is_sent_without_asking_first(make_webhook: MakeWebhook) -> None:
    with Receiver() as receiver:
        event = make_event({"text": "x" * 5_000_000})
        assert deliver_one(make_webhook(receiver.url), event) == DELIVERED_OUTCOME
        assert "expect" not in receiver.only.headers
        assert event.body in receiver.only.body


@pytest.mark.parametrize("text", ["a\r\nx-injected: 1", "a\nb", "a\rb", "a\0b", "ü"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_header_with_a_line_break_is_not_sent(make_webhook: MakeWebhook, text: str, place: int) -> None:
    """No code of ours makes such a request; the transport would refuse it."""
    pair = ("x-name", text) if place else (text, "value")
    with Receiver() as receiver:
        webhook = make_webhook(receiver.url)
        request = WebhookRequest(webhook._url, (pair,), b"{}", time.monotonic() + 60)
        ((_, answer),) = webhook.transport.exchange(iter([("key", request)]), 1)
        assert isinstance(answer, NotSent)
        assert answer.error.startswith("not sent: ")
        assert receiver.requests == []


def test_a_process_with_very_many_descriptors_can_send(make_webhook: MakeWebhook) -> None:
    """More than select() can wait for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as ending, Receiver() as receiver:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), max(hard, 4096)))
        ending.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            ending.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        assert (
            deliver(make_webhook(receiver.url), [make_event() for _ in range(20)], at_once=4)
            == [DELIVERED_OUTCOME] * 20
        )


def test_a_transport_of_the_users_own_can_be_passed(make_webhook: MakeWebhook) -> None:
    outcomes = deliver(
        make_webhook("https://receiver.example/", transport=ReversingTransport()), [make_event(), make_event()]
    )
    assert unavailable(outcomes[0]) == "nobody there"
    assert outcomes[1] == DELIVERED_OUTCOME


def test_ipv6(make_webhook: MakeWebhook) -> None:
    """An IPv6 address has brackets in the URL and in the Host header, and nowhere else."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                heard.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

        heard: list[bytes] = []
        thread = threading.Thread(target=serve)
        thread.start()
        assert deliver_one(make_webhook(f"http://[::1]:{port}/")) == DELIVERED_OUTCOME
        thread.join()
    assert f"\r\nhost: [::1]:{port}\r\n".encode() in heard[0].lower()
