"""Many transfers in one thread: libcurl's multi interface, and what libcurl leaves to us."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import TypeVar

import pycurl

from outbox.webhooks.transport import response_summary as response
from outbox.webhooks.transport.libcurl.transfer import Route, Transfer
from outbox.webhooks.transport.protocol import NoResponse, NotSent, SendResult, WebhookRequest
from outbox.webhooks.transport.public_address import AddressNotAllowed
from outbox.webhooks.transport.resolver import Lookup, Resolver

K = TypeVar("K")

# An interrupt reaches a thread only between two instructions: waiting is done in pieces.
PIECE_SECONDS = 0.5
# A lookup, or a descriptor that select() can't have, does not end the wait: it is looked at this often.
GLANCE_SECONDS = 0.002
# So many steps are usual for a request: to connect, to send a large body, to receive. A receiver that sends byte by
# byte causes a step with each: then there is a pause before each.
STEPS_PER_REQUEST = 100
# They are closed for their age alone: by itself, libcurl may keep four for each request that is under way, and at the
# end of a batch these are few.
MOST_CONNECTIONS = 10_000


class MultiLoop:
    """A multi handle, its connections, and transfers to use them; for one exchange at a time."""

    def __init__(self, route: Route, resolver: Resolver) -> None:
        self._route = route
        self._resolver = resolver
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, MOST_CONNECTIONS)
        self._multi.setopt(pycurl.M_PIPELINING, 0)
        self._idle: list[Transfer] = []
        self._sending: dict[pycurl.Curl, Transfer] = {}
        self._resolving: dict[Transfer, Lookup] = {}
        self._answers: list[tuple[Transfer, SendResult]] = []
        self._is_blind = False
        self._steps_left = 0

    @property
    def is_at_rest(self) -> bool:
        return not self._sending and not self._resolving

    def exchange(
        self, requests: Iterator[tuple[K, WebhookRequest]], at_once: int
    ) -> Generator[tuple[K, SendResult], None, None]:
        """Requests are taken while there is room for them, and only when every answer has been handed out.

        It may be an answer that decides that there is no next request. Who closes this cancels what is under way.
        """
        keys: dict[Transfer, K] = {}
        more = True
        self._steps_left = 0
        try:
            while True:
                while more and len(keys) < at_once:
                    taken = next(requests, None)
                    if taken is None:
                        more = False
                    else:
                        transfer = self._idle.pop() if self._idle else Transfer(self._route)
                        keys[transfer] = taken[0]
                        self._steps_left += STEPS_PER_REQUEST
                        self._begin(transfer, taken[1])
                if not keys:
                    return
                self._step()
                for transfer, answer in self._answers:
                    key = keys.pop(transfer)
                    self._idle.append(transfer)
                    yield key, answer
                self._answers.clear()
        finally:
            self._cancel(keys)

    def close(self) -> None:
        """Also the transfers: each holds what is called back."""
        self._cancel({})
        for transfer in self._idle:
            transfer.close()
        self._idle.clear()
        self._multi.close()

    def _begin(self, transfer: Transfer, request: WebhookRequest) -> None:
        """On a connection that is kept, if there may be one; else a name has to be looked up first."""
        try:
            transfer.begin(request)
            if transfer.may_be_kept:
                self._send(transfer)
            else:
                self._look_up(transfer)
        except Exception as error:  # it is this request that can't be sent
            self._answers.append((transfer, _unsent(error)))

    def _send(self, transfer: Transfer) -> None:
        self._sending[transfer.handle] = transfer  # first: what is not in here would never be removed
        self._multi.add_handle(transfer.handle)

    def _look_up(self, transfer: Transfer) -> None:
        if transfer.is_late:
            self._answers.append((transfer, NoResponse(f"timed out while {transfer.resolving}")))
        else:
            self._resolving[transfer] = self._resolver.begin(*transfer.peer)

    def _step(self) -> None:
        """Until something has happened, or a piece of time has passed."""
        if self._resolving:
            self._connect()
        if self._sending:
            self._multi.perform()
            self._collect()
        if not self._answers:
            self._steps_left -= 1
            if self._steps_left < 0:
                time.sleep(GLANCE_SECONDS)
            self._wait()

    def _connect(self) -> None:
        """Those whose name has been looked up."""
        for transfer, lookup in list(self._resolving.items()):
            try:
                addresses = lookup.result(0)
            except TimeoutError:
                if transfer.is_late:
                    del self._resolving[transfer]
                    self._answers.append((transfer, NoResponse(f"timed out while {transfer.resolving}")))
                continue
            except OSError as error:
                del self._resolving[transfer]
                self._answers.append((transfer, NoResponse(f"{error} while {transfer.resolving}")))
                continue
            del self._resolving[transfer]
            try:
                transfer.connect(addresses)
                self._send(transfer)
            except Exception as error:
                self._answers.append((transfer, _unsent(error)))

    def _collect(self) -> None:
        _, answered, failed = self._multi.info_read()
        for handle in answered:
            transfer = self._remove(handle)
            self._answers.append((transfer, transfer.answered()))
        for handle, code, message in failed:
            self._settle(self._remove(handle), code, message)
        for transfer in [each for each in self._sending.values() if each.head]:
            if transfer.has_sent_enough:
                self._remove(transfer.handle)
                self._answers.append((transfer, transfer.answered()))

    def _settle(self, transfer: Transfer, code: int, message: str) -> None:
        try:
            answer = transfer.failed(code, message)
            if answer is not None:
                self._answers.append((transfer, answer))
            elif transfer.may_be_kept:
                self._send(transfer)
            else:
                self._look_up(transfer)
        except Exception as error:
            self._answers.append((transfer, _unsent(error)))

    def _remove(self, handle: pycurl.Curl) -> Transfer:
        """What is not over ends here, and its connection with it."""
        self._multi.remove_handle(handle)
        transfer = self._sending.pop(handle)
        transfer.let_go()
        self._is_blind |= transfer.is_out_of_sight
        return transfer

    def _wait(self) -> None:
        if not self._sending:
            next(iter(self._resolving.values())).wait(PIECE_SECONDS / 10)
            return
        seconds = GLANCE_SECONDS if self._resolving or self._is_blind else PIECE_SECONDS
        for transfer in self._sending.values():
            if transfer.head:
                seconds = min(seconds, response.BODY_SECONDS / 10)
            if transfer.is_out_of_sight:
                seconds = GLANCE_SECONDS
        timer = self._multi.timeout()
        if timer >= 0:
            seconds = min(seconds, timer / 1000)
        # Without a descriptor that it could wait for, it does not wait.
        if seconds > 0 and self._multi.select(seconds) < 0:
            time.sleep(min(seconds, GLANCE_SECONDS))

    def _cancel(self, keys: dict[Transfer, K]) -> None:
        for handle in list(self._sending):
            with suppress(pycurl.error):  # interrupted before it was added, or after it was removed
                self._multi.remove_handle(handle)
            self._sending.pop(handle).let_go()
        self._resolving.clear()
        self._answers.clear()
        self._idle.extend(keys)


def _unsent(error: Exception) -> NotSent:
    return NotSent(str(error) if isinstance(error, AddressNotAllowed) else f"not sent: {type(error).__name__}: {error}")
