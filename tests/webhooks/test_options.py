"""The parameters of `Webhook`: an invalid one is refused; the error says what to do, and shows no secret."""

import base64
import hmac
import importlib.util
import math
import ssl
from collections.abc import Mapping
from typing import Any

import certifi
import pytest

from outbox.destinations.limits import Limits
from outbox.errors import RegistrationError
from outbox.webhooks.transport.libcurl.ca_certificates import CaCertificates
from outbox.webhooks.transport.protocol import WebhookRequest
from outbox.webhooks.webhook import Webhook
from tests.support.program import run_python
from tests.webhooks.deliveries import NOW, SECRET, ReversingTransport, make_event

URL = "https://receiver.example/hook"


def request_of(webhook: Webhook) -> WebhookRequest:
    """Return the request that the webhook would send for an event."""
    return webhook._request_builder.build(make_event(), NOW, 0.0)


def refused(name: Any = "hook", url: Any = URL, **options: Any) -> str:
    """Return the error of a webhook with invalid parameters."""
    with pytest.raises(RegistrationError) as caught:
        Webhook(name, url, **options)
    return str(caught.value)


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "said"),
        [
            ("", "must begin with http:// or https://"),
            ("receiver.example", "must begin with http:// or https://"),
            ("ftp://receiver.example", "must begin with http:// or https://"),
            ("file:///etc/passwd", "must begin with http:// or https://"),
            ("https://", "has no host"),
            ("https:///hook", "has no host"),
            ("https://:443/", "has no host"),
            ("https://a b/", "contains a space"),
            ("https://receiver.example/a b", "contains a space"),
            ("https://receiver.example/\r\nx: y", "contains a space"),
            ("https://receiver.example\\@evil.example/", "a backslash"),
            ("https://receiver.example/\x7f", "a control character"),
            ("https://receiver.example/#there", "has a fragment"),
            ("https://receiver.example/#", "has a fragment"),
            ("https://receiver.example:port/", "can't be read"),
            ("https://receiver.example:99999/", "can't be read"),
            ("https://receiver.example:0/", "has the port 0"),
            ("https://[::1/", "can't be read"),
            ("https://receiver,example/", "must be a name or an IP address"),
            ("https://" + "ä" * 70 + ".example/", "must be a name or an IP address"),
            ("https://me%0a:hush@receiver.example/", "user name or password that can't be sent"),
            ("https://me%3a:hush@receiver.example/", "user name or password that can't be sent"),
            (None, "must be text"),
            (b"https://receiver.example/", "must be text"),
        ],
    )
    def test_a_wrong_one_is_refused(self, url: Any, said: str) -> None:
        assert said in refused("hook", url)

    @pytest.mark.parametrize(
        "url",
        [
            "ftp://me:hush@receiver.example/?key=hush",
            "https://me:hush@receiver.example:port/?key=hush",
            "https://me:hush@/?key=hush",
            "https://me:hush@receiver.example/?key=hush#",
            "https://me:hush @receiver.example/",
            "https://me:hush%0a@receiver.example/",
            "hush",
        ],
    )
    def test_an_error_quotes_no_part_of_it(self, url: str) -> None:
        assert "hush" not in refused("hook", url)

    def test_a_host_may_have_letters_beyond_ascii(self) -> None:
        assert repr(Webhook("hook", "https://bücher.example/")) == "<Webhook hook https://xn--bcher-kva.example>"

    def test_only_the_host_is_shown(self) -> None:
        webhook = Webhook("hook", "https://me:hush@receiver.example:8443/hush?key=hush", secret=SECRET)
        assert repr(webhook) == "<Webhook hook https://receiver.example:8443>"
        assert "hush" not in repr(webhook._url)
        assert "hush" not in str(webhook._url)


class TestSecrets:
    @pytest.mark.parametrize(
        ("secret", "said"),
        [
            ("", "must be 24 to 64 bytes in base64, not 0"),
            ("whsec_", "must be 24 to 64 bytes in base64, not 0"),
            ("whsec_" + "QUJD" * 7, "not 21"),
            ("whsec_" + "QUJD" * 22, "not 66"),
            ("whsec_!!!!", "and base64 after it"),
            ("whsec_hüsh", "and base64 after it"),
            ("whsec_QUJDR", "and base64 after it"),
            ("plain text, which is no base64", "and base64 after it"),
            ([], "there is no secret"),
            ([SECRET, "hush"], "secret 2 of 2"),
            ([SECRET, None], "must be text, not NoneType"),
            (b"whsec_" + b"QUJD" * 8, "must be text, not bytes"),
            (7, "must be text, not int"),
        ],
    )
    def test_a_wrong_one_is_refused(self, secret: Any, said: str) -> None:
        error = refused(secret=secret)
        assert said in error
        assert "new_secret()" in error

    @pytest.mark.parametrize("size", [24, 64])
    def test_the_shortest_and_the_longest_are_taken(self, size: int) -> None:
        secret = base64.b64encode(b"x" * size).decode()
        for text in (secret, f"whsec_{secret}", secret.rstrip("=")):
            request = request_of(Webhook("hook", URL, secret=text))
            headers = dict(request.headers)
            signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + request.body
            expected = base64.b64encode(hmac.digest(b"x" * size, signed, "sha256")).decode()
            assert headers["webhook-signature"] == f"v1,{expected}"

    @pytest.mark.parametrize("secret", ["whsec_hushhushhush", "whsec_hush!", ["whsec_hushhushhush"]])
    def test_an_error_does_not_quote_it(self, secret: Any) -> None:
        assert "hush" not in refused(secret=secret)

    def test_no_repr_shows_it(self) -> None:
        webhook = Webhook("hook", URL, secret=SECRET, headers={"x-key": "hushhush"})
        shown = (
            repr(webhook)
            + repr(webhook._request_builder)
            + repr(webhook._response_policy)
            + repr(webhook._request_builder._keys)
        )
        assert SECRET.removeprefix("whsec_") not in shown
        assert "hush" not in shown


class TestHeaders:
    @pytest.mark.parametrize(
        "name",
        [
            *("webhook-id", "Webhook-Signature", "content-type", "Content-Length", "host", "ce-id", "user-agent"),
            *("accept-encoding", "connection", "transfer-encoding", "traceparent", "expect", "proxy-authorization"),
        ],
    )
    def test_reserved_headers_are_refused(self, name: str) -> None:
        assert repr(name) in refused(headers={name: "x"})

    @pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nb", "ä", 7])
    def test_an_invalid_name_is_refused(self, name: Any) -> None:
        assert "is not a valid name" in refused(headers={name: "x"})

    @pytest.mark.parametrize("value", ["", " ", "hush\r\nx: y", "hush\n", "hüsh", "hush\x00", " hush", 7, None])
    def test_an_invalid_value_is_refused_and_not_quoted(self, value: Any) -> None:
        error = refused(headers={"x-key": value})
        assert "must be visible ASCII characters" in error
        assert "hush" not in error

    def test_a_name_that_is_there_twice_is_refused(self) -> None:
        assert "there twice" in refused(headers={"x-key": "a", "X-Key": "b"})

    @pytest.mark.parametrize("headers", [[("x", "y")], "x: y", 7])
    def test_they_must_be_a_mapping(self, headers: Any) -> None:
        assert "must be a mapping" in refused(headers=headers)

    @pytest.mark.parametrize("token", ["", "a b", "hush\n", "hüsh", 7])
    def test_an_invalid_token_is_refused_and_not_quoted(self, token: Any) -> None:
        error = refused(token=token)
        assert "token must be visible ASCII" in error
        assert "hush" not in error

    @pytest.mark.parametrize(
        ("url", "options"),
        [
            (URL, {"token": "t", "headers": {"Authorization": "x"}}),
            ("https://me:hush@receiver.example", {"token": "t"}),
            ("https://me:hush@receiver.example", {"headers": {"authorization": "x"}}),
        ],
    )
    def test_only_one_kind_of_authentication_can_be_given(self, url: str, options: Mapping[str, Any]) -> None:
        assert "Only one of" in refused("hook", url, **options)

    def test_an_authorization_header_of_the_users_own_is_one_kind(self) -> None:
        webhook = Webhook("hook", URL, headers={"Authorization": "Digest x"})
        assert [value for name, value in request_of(webhook).headers if name == "authorization"] == ["Digest x"]


class TestOtherOptions:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"timeout": 0}, "timeout must be"),
            ({"timeout": -1}, "timeout must be"),
            ({"timeout": math.inf}, "timeout must be"),
            ({"timeout": math.nan}, "timeout must be"),
            ({"timeout": "15"}, "timeout must be"),
            ({"timeout": True}, "timeout must be"),
            ({"concurrency": 0}, "concurrency must be"),
            ({"concurrency": None}, "concurrency must be"),
            ({"concurrency": True}, "concurrency must be"),
            ({"per_second": 0}, "per_second must be"),
            ({"events": []}, "events is empty"),
            ({"events": "order.*"}, "['order.*']"),
            ({"events": ["or*er"]}, "is not a pattern"),
            ({"format": "xml"}, "format must be one of 'json', 'cloudevents', 'cloudevents-binary'"),
            ({"format": None}, "format must be one of"),
            ({"source": ""}, "source must be"),
            ({"source": "a b"}, "source must be"),
            ({"source": None}, "source must be"),
            ({"unavailable_on": [200]}, "unavailable_on must be statuses"),
            ({"unavailable_on": 503}, "unavailable_on must be statuses"),
            ({"fail_on": ["410"]}, "fail_on must be statuses"),
            ({"fail_on": [600]}, "fail_on must be statuses"),
            ({"fail_on": [True]}, "fail_on must be statuses"),
            ({"fail_on": [429]}, "429 is in unavailable_on and in fail_on"),
            ({"ssl_context": "cert.pem"}, "ssl_context must be"),
            ({"proxy": "https://proxy.example"}, "proxy must look like"),
            ({"proxy": "http://proxy.example/path"}, "proxy must look like"),
            ({"proxy": "socks5://proxy.example"}, "proxy must begin with"),
            ({"proxy": "http://me:hush@proxy.example:port"}, "proxy can't be read"),
            ({"proxy": 7}, "proxy must be text"),
            (
                {"url": "http://a.example", "proxy": "http://proxy.example", "allow_private": False},
                "can't be enforced for an http:// URL through a proxy",
            ),
            ({"transport": ReversingTransport(), "allow_private": False}, "with a transport of your own"),
            ({"transport": ReversingTransport(), "proxy": "http://proxy.example"}, "with a transport of your own"),
            ({"transport": ReversingTransport(), "client": "curl"}, "with a transport of your own"),
            ({"client": "requests"}, "client must be 'httpx' or 'curl', not 'requests'"),
            ({"client": None}, "client must be 'httpx' or 'curl'"),
            ({"client": "curl", "ssl_context": ssl.create_default_context()}, "SSL_CERT_FILE"),
            (
                {"transport": ReversingTransport(), "ssl_context": ssl.create_default_context()},
                "with a transport of your own",
            ),
        ],
    )
    def test_an_invalid_option_is_refused(self, options: dict[str, Any], said: str) -> None:
        error = refused(**options)
        assert said in error
        assert "hush" not in error

    @pytest.mark.parametrize("name", ["", " ", None, 7])
    def test_it_needs_a_name(self, name: Any) -> None:
        assert "needs a name" in refused(name, URL)

    def test_ipv6_and_a_proxy_do_not_go_together(self) -> None:
        assert "through a proxy" in refused("hook", "https://[2001:db8::1]/", proxy="http://proxy.example")

    def test_it_has_limits(self) -> None:
        webhook = Webhook("hook", URL, concurrency=3, per_second=2.5, timeout=10)
        assert webhook.limits == Limits(concurrency=3, per_second=2.5)
        assert webhook.at_once == 3
        assert webhook.hold_seconds > 10

    def test_it_has_the_events_that_it_was_given(self) -> None:
        webhook = Webhook("hook", URL, events=["order.*", "user.created"])
        assert webhook.events == ("order.*", "user.created")
        assert Webhook("hook", URL).events == ("*",)


class TestHttpx:
    def test_without_it_the_error_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", {}.get)
        assert "pip install 'dramatiq-outbox[webhooks]'" in refused()

    def test_it_is_not_needed_with_another_transport(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", {}.get)
        transport = ReversingTransport()
        assert Webhook("hook", URL, transport=transport).transport is transport

    def test_it_is_imported_with_the_first_delivery_only(self) -> None:
        program = (
            "import sys, outbox, outbox.webhooks; from outbox.webhooks.webhook import Webhook\n"
            f"webhook = Webhook('hook', {URL!r}, secret={SECRET!r})\n"
            "assert not {'httpx', 'httpcore', 'ssl_context'} & sys.modules.keys(), sorted(sys.modules)\n"
            "webhook.transport; assert {'httpx', 'httpcore'} <= sys.modules.keys()"
        )
        run_python(program)


class TestCurl:
    def test_without_it_the_error_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", {"httpx": object(), "httpcore": object()}.get)
        assert "pip install 'dramatiq-outbox[curl]'" in refused(client="curl")

    def test_it_works_without_httpx(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", {"pycurl": object()}.get)
        webhook = Webhook("hook", URL, client="curl")
        assert type(webhook.transport).__name__ == "CurlTransport"

    def test_it_is_imported_with_the_first_delivery_only_and_httpx_never(self) -> None:
        program = (
            "import sys, outbox, outbox.webhooks; from outbox.webhooks.webhook import Webhook\n"
            f"webhook = Webhook('hook', {URL!r}, secret={SECRET!r}, client='curl')\n"
            "assert 'pycurl' not in sys.modules\n"
            "list(webhook.deliver([], outbox.Lease.lasting(1)))\n"
            "assert 'pycurl' in sys.modules and not {'httpx', 'httpcore', 'h11'} & sys.modules.keys()"
        )
        run_python(program)


class TestCaCertificates:
    """libcurl can't use an SSLContext, and gets the paths of the CA certificates."""

    @pytest.fixture(autouse=True)
    def nothing_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
            monkeypatch.delenv(variable, raising=False)

    def test_the_environment_names_a_file_or_a_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SSL_CERT_DIR", "/folder")
        assert CaCertificates.default() == (None, "/folder")
        monkeypatch.setenv("SSL_CERT_FILE", "/file")
        assert CaCertificates.default() == ("/file", None)

    def test_otherwise_they_are_those_of_httpx(self) -> None:
        assert CaCertificates.default() == (certifi.where(), None)

    def test_without_certifi_they_are_the_systems(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", {}.get)
        paths = ssl.get_default_verify_paths()
        assert CaCertificates.default() == (paths.cafile, paths.capath)
