"""Configure libcurl's easy handles: which options a transfer uses, and how it reaches a URL.

libcurl is only used to speak HTTP/1.1 with an address that was resolved and checked by this library. What libcurl could
do beyond that is switched off: use the environment's proxy, follow redirects, decompress bodies, send requests again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pycurl

from outbox.webhooks.transport.client_certificate import ClientCertificate
from outbox.webhooks.transport.libcurl.ca_certificates import CaCertificates
from outbox.webhooks.transport.url import Url

# Less than servers and load balancers usually keep an idle connection.
KEEP_ALIVE_SECONDS = 4


class Route(NamedTuple):
    """How the receivers of one webhook are reached."""

    public_only: bool
    proxy: Url | None
    ca_certificates: CaCertificates
    client_certificate: ClientCertificate | None = None


def make_easy_handle(
    route: Route,
    *,
    on_header_line: Callable[[bytes], None],
    on_body: Callable[[bytes], None],
    open_socket: Callable[..., Any],
) -> pycurl.Curl:
    """Return a handle with all options that are the same for every request.

    The first two callbacks must be methods of lists, not Python functions. If another thread raises an exception in
    this thread (such as Dramatiq's time limit) while a Python function runs inside libcurl, the exception is lost. Only
    `open_socket` is a Python function, and it runs only for a new connection.
    """
    handle = pycurl.Curl()
    options = {
        pycurl.POST: 1,
        pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
        pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS,
        pycurl.FOLLOWLOCATION: 0,
        pycurl.HTTP_CONTENT_DECODING: 0,
        pycurl.NETRC: pycurl.NETRC_IGNORED,
        pycurl.NOSIGNAL: 1,
        pycurl.MAXAGE_CONN: KEEP_ALIVE_SECONDS,
        pycurl.SSL_VERIFYPEER: 1,
        pycurl.SSL_VERIFYHOST: 2,
        # Empty texts switch off the proxy variables of the environment (HTTP_PROXY, NO_PROXY and so on).
        pycurl.PROXY: "",
        pycurl.NOPROXY: "",
        pycurl.HEADERFUNCTION: on_header_line,
        pycurl.WRITEFUNCTION: on_body,
        pycurl.OPENSOCKETFUNCTION: open_socket,
    }
    for option, value in options.items():
        handle.setopt(option, value)
    file, folder = route.ca_certificates
    for option, path in ((pycurl.CAINFO, file), (pycurl.CAPATH, folder)):
        if path is None:
            handle.unsetopt(option)
        else:
            handle.setopt(option, os.fsencode(path))
    if route.client_certificate is not None:
        handle.setopt(pycurl.SSLCERT, os.fsencode(route.client_certificate.certificate))
        handle.setopt(pycurl.SSLKEY, os.fsencode(route.client_certificate.key))
        # Without this, OpenSSL would ask for the passphrase of a key on the terminal, and wait.
        handle.setopt(pycurl.KEYPASSWD, "")
    return handle


def set_url(handle: pycurl.Curl, url: Url, proxy: Url | None) -> bool:
    """Set the URL of a handle, and return whether requests to it go through a tunnel in the proxy.

    libcurl gets a URL without the path, and the path as the request target, so that its errors can't show the path.
    """
    is_tunnel = proxy is not None and url.scheme == "https"
    handle.setopt(pycurl.URL, f"{url}/")
    is_absolute = proxy is not None and not is_tunnel
    target = f"{url.scheme}://{url.host}:{url.port}{url.target}" if is_absolute else url.target
    handle.setopt(pycurl.REQUEST_TARGET, target)
    if proxy is not None:
        handle.setopt(pycurl.HTTPPROXYTUNNEL, int(is_tunnel))
        if proxy.credentials is not None:
            user, password = proxy.credentials
            handle.setopt(pycurl.PROXYAUTH, pycurl.HTTPAUTH_BASIC)
            handle.setopt(pycurl.PROXYUSERNAME, user.encode())
            handle.setopt(pycurl.PROXYPASSWORD, password.encode())
    return is_tunnel
