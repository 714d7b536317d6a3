"""Translate libcurl's error codes into errors of requests, with the same texts as in the transport over httpcore."""

from __future__ import annotations

import os
import re

import pycurl

from outbox.webhooks.transport.libcurl.response_heads import ResponseHead, is_success
from outbox.webhooks.transport.protocol import NoResponse

# If a kept connection turns out to be dead, libcurl tries to send the request again, on any connection that it has. For
# that it has to read the body a second time, which our callback does not allow. So the transfer ends with this error.
KEPT_CONNECTION_WAS_DEAD = pycurl.E_SEND_FAIL_REWIND
# The request could not be sent because of an error on our side.
OUR_ERRORS = frozenset(
    (
        pycurl.E_URL_MALFORMAT,
        pycurl.E_FAILED_INIT,
        pycurl.E_OUT_OF_MEMORY,
        43,  # CURLE_BAD_FUNCTION_ARGUMENT
        48,  # CURLE_UNKNOWN_OPTION
    )
)
_CONNECTION_ERRORS = frozenset((pycurl.E_SEND_ERROR, pycurl.E_RECV_ERROR))
_CERTIFICATE_PREFIX = re.compile(r"^SSL certificate (problem|OpenSSL verify result): ")


def explain(
    code: int,
    message: str,
    *,
    operation: str,
    is_connected: bool,
    system_error: int,
    proxy_response: ResponseHead | None,
) -> NoResponse:
    """Return the result of a request that got no response.

    `operation` is what the request was doing, `system_error` the errno of the last system call.
    """
    if code == pycurl.E_OPERATION_TIMEDOUT:
        return NoResponse(f"timed out while {operation}")
    if code == pycurl.E_PEER_FAILED_VERIFICATION:
        reason = _CERTIFICATE_PREFIX.sub("", message)
        return NoResponse(f"the receiver's certificate was not accepted: {reason}")
    if proxy_response is not None and not is_success(proxy_response.status):
        reason = proxy_response.reason.decode("latin-1")
        return NoResponse(f"the proxy responded {proxy_response.status} {reason}".rstrip())
    if code in _CONNECTION_ERRORS or not is_connected:
        return NoResponse(f"{os.strerror(system_error) if system_error else message} while {operation}")
    if code == pycurl.E_GOT_NOTHING:
        return NoResponse("no HTTP response", "Server disconnected without sending a response.")
    return NoResponse("no HTTP response", message or f"error {code} of libcurl")
