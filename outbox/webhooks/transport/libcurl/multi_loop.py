"""Run many transfers in one thread with libcurl's multi interface.

libcurl connects, sends and receives. This module does the rest: it takes requests while fewer than `at_once` are in
flight, resolves names in threads, waits until something happens, and ends transfers that exceed a limit.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import TypeVar

import pycurl

from outbox.webhooks.transport import response_limits
from outbox.webhooks.transport.interruptible import LONGEST_BLOCK_SECONDS
from outbox.webhooks.transport.libcurl.easy_handle import Route
from outbox.webhooks.transport.libcurl.transfer import Transfer
from outbox.webhooks.transport.protocol import NoResponse, NotSent, SendResult, WebhookRequest
from outbox.webhooks.transport.public_address import AddressNotAllowed
from outbox.webhooks.transport.resolver import Lookup, Resolver

K = TypeVar("K")

# select() does not notice the end of a lookup, or a descriptor that is too high for it. So both are polled, this often.
POLL_SECONDS = 0.002
# A request usually needs fewer steps than this: to connect, to send a large body, to receive the response. But a
# receiver that sends byte by byte causes a step with each byte. Beyond this number there is a pause in each step.
STEPS_PER_REQUEST = 100
# This is so high that connections are closed only because of their age. libcurl's default is four connections for each
# request in flight. It would close good connections at the end of a batch, when few requests are in flight.
MOST_CONNECTIONS = 10_000


class MultiLoop:
    """A multi handle, its connections, and its transfers. It runs one exchange at a time."""

    def __init__(self, route: Route, resolver: Resolver) -> None:
        self._route = route
        self._resolver = resolver
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, MOST_CONNECTIONS)
        self._multi.setopt(pycurl.M_PIPELINING, 0)
        self._idle: list[Transfer] = []
        # The transfers that libcurl works on, and those that wait for a name to be resolved.
        self._sending: dict[pycurl.Curl, Transfer] = {}
        self._resolving: dict[Transfer, Lookup] = {}
        self._results: list[tuple[Transfer, SendResult]] = []
        # Whether a kept connection may have a descriptor that is too high for select().
        self._has_high_descriptors = False
        self._steps_left = 0

    @property
    def is_idle(self) -> bool:
        """Return whether no transfer is in flight, so that another exchange may use this loop."""
        return not self._sending and not self._resolving

    def exchange(
        self, requests: Iterator[tuple[K, WebhookRequest]], at_once: int
    ) -> Generator[tuple[K, SendResult], None, None]:
        """Send all requests and yield their results. See `Transport.exchange`.

        All results are yielded before the next request is taken, because the caller may decide after a result to give
        no more requests. Closing the generator cancels the requests that are in flight.
        """
        keys: dict[Transfer, K] = {}
        has_more = True
        self._steps_left = 0
        try:
            while True:
                while has_more and len(keys) < at_once:
                    taken = next(requests, None)
                    if taken is None:
                        has_more = False
                    else:
                        transfer = self._idle.pop() if self._idle else Transfer(self._route)
                        keys[transfer] = taken[0]
                        self._steps_left += STEPS_PER_REQUEST
                        self._begin(transfer, taken[1])
                if not keys:
                    return
                self._step()
                for transfer, result in self._results:
                    key = keys.pop(transfer)
                    self._idle.append(transfer)
                    yield key, result
                self._results.clear()
        finally:
            self._cancel(keys)

    def close(self) -> None:
        """Close all connections. Also close the transfers, because otherwise their callbacks keep them in memory."""
        self._cancel({})
        for transfer in self._idle:
            transfer.close()
        self._idle.clear()
        self._multi.close()

    def _begin(self, transfer: Transfer, request: WebhookRequest) -> None:
        """Send a request over a kept connection, if there may be one; otherwise resolve its name first."""
        try:
            transfer.begin(request)
            self._send_or_resolve(transfer)
        except Exception as error:  # only this request can't be sent
            self._results.append((transfer, _not_sent(error)))

    def _send_or_resolve(self, transfer: Transfer) -> None:
        if transfer.may_reuse_connection:
            self._send(transfer)
        elif transfer.is_late:
            self._results.append((transfer, NoResponse(f"timed out while {transfer.resolving}")))
        else:
            self._resolving[transfer] = self._resolver.begin(*transfer.peer)

    def _send(self, transfer: Transfer) -> None:
        # In this order: if an exception is raised between the two lines, `_cancel` must find the handle in the dict.
        self._sending[transfer.handle] = transfer
        self._multi.add_handle(transfer.handle)

    def _step(self) -> None:
        """Let libcurl work, and collect results. If there are none, wait until something happens."""
        if self._resolving:
            self._connect_resolved()
        if self._sending:
            self._multi.perform()
            self._collect()
        if not self._results:
            self._steps_left -= 1
            if self._steps_left < 0:
                time.sleep(POLL_SECONDS)
            self._wait()

    def _connect_resolved(self) -> None:
        """Connect the transfers whose name has been resolved. End those that are too late, or whose lookup failed."""
        for transfer, lookup in list(self._resolving.items()):
            try:
                addresses = lookup.result(0)
            except TimeoutError:
                if transfer.is_late:
                    del self._resolving[transfer]
                    self._results.append((transfer, NoResponse(f"timed out while {transfer.resolving}")))
                continue
            except OSError as error:
                del self._resolving[transfer]
                self._results.append((transfer, NoResponse(f"{error} while {transfer.resolving}")))
                continue
            del self._resolving[transfer]
            try:
                if transfer.resolved(addresses):
                    self._send(transfer)
                else:
                    self._send_or_resolve(transfer)
            except Exception as error:
                self._results.append((transfer, _not_sent(error)))

    def _collect(self) -> None:
        """Collect the results of the transfers that libcurl has ended, and end those that exceed a limit."""
        _, ended, failed = self._multi.info_read()
        for handle in ended:
            transfer = self._remove(handle)
            self._results.append((transfer, transfer.result()))
        for handle, code, message in failed:
            self._handle_failure(self._remove(handle), code, message)
        for transfer in [each for each in self._sending.values() if each.header_lines]:
            if transfer.exceeds_limits:
                self._remove(transfer.handle)
                self._results.append((transfer, transfer.result()))

    def _handle_failure(self, transfer: Transfer, code: int, message: str) -> None:
        try:
            result = transfer.result_of_failure(code, message)
            if result is not None:
                self._results.append((transfer, result))
            else:
                self._send_or_resolve(transfer)
        except Exception as error:
            self._results.append((transfer, _not_sent(error)))

    def _remove(self, handle: pycurl.Curl) -> Transfer:
        """Take a handle away from libcurl. If its transfer has not ended, this ends it and closes its connection."""
        self._multi.remove_handle(handle)
        transfer = self._sending.pop(handle)
        transfer.close_sockets()
        self._has_high_descriptors |= transfer.is_beyond_select
        return transfer

    def _wait(self) -> None:
        """Wait until a socket is ready, a timer of libcurl's has run out, or it is time to poll."""
        if not self._sending:
            next(iter(self._resolving.values())).wait(LONGEST_BLOCK_SECONDS / 10)
            return
        seconds = POLL_SECONDS if self._resolving or self._has_high_descriptors else LONGEST_BLOCK_SECONDS
        for transfer in self._sending.values():
            if transfer.header_lines:
                seconds = min(seconds, response_limits.BODY_SECONDS / 10)
            if transfer.is_beyond_select:
                seconds = POLL_SECONDS
        timer = self._multi.timeout()
        if timer >= 0:
            seconds = min(seconds, timer / 1000)
        # select() returns -1 immediately if libcurl has no descriptor to wait for.
        if seconds > 0 and self._multi.select(seconds) < 0:
            time.sleep(min(seconds, POLL_SECONDS))

    def _cancel(self, keys: dict[Transfer, K]) -> None:
        """End all transfers that are in flight, and make those with a key available to the next exchange."""
        for handle in list(self._sending):
            with suppress(pycurl.error):  # an exception was raised before the handle was added, or after its removal
                self._multi.remove_handle(handle)
            self._sending.pop(handle).close_sockets()
        self._resolving.clear()
        self._results.clear()
        self._idle.extend(keys)


def _not_sent(error: Exception) -> NotSent:
    return NotSent(str(error) if isinstance(error, AddressNotAllowed) else f"not sent: {type(error).__name__}: {error}")
