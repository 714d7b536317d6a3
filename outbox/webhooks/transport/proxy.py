"""Choose the proxy of a webhook. Without the parameter `proxy` none is used, even if HTTP_PROXY is set."""

from __future__ import annotations

import urllib.request

from outbox.errors import RegistrationError
from outbox.webhooks.transport.url import Url

ENVIRONMENT = "environment"
PARAMETER = "proxy"


def choose_proxy(proxy: object, url: Url) -> Url | None:
    """Return the proxy for a receiver's URL, or None.

    `proxy` is a URL, or "environment": then HTTP_PROXY, HTTPS_PROXY and NO_PROXY decide.
    """
    if proxy is None:
        return None
    address = _from_environment(url) if proxy == ENVIRONMENT else proxy
    if address is None:
        return None
    chosen = Url.parse(address, PARAMETER)
    if chosen.scheme != "http" or chosen.target != "/":
        raise RegistrationError(
            f"{PARAMETER} must look like 'http://proxy.example:3128'. Requests over https use a tunnel through it."
        )
    if ":" in url.host:
        raise RegistrationError("An IPv6 address can't be reached through a proxy: give the receiver's name.")
    return chosen


def _from_environment(url: Url) -> str | None:
    proxies = urllib.request.getproxies()
    address = proxies.get(url.scheme, proxies.get("all"))
    if not address or urllib.request.proxy_bypass(url.authority):
        return None
    return address if "://" in address else f"http://{address}"
