"""`outbox.webhooks.verify`: what it accepts, what it refuses, and that nothing else can happen."""

import base64
import hmac
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.message import Message
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook as Reference
from standardwebhooks.webhooks import WebhookVerificationError

import outbox.errors
from outbox import webhooks
from outbox.errors import OutboxError
from outbox.webhooks.signature import read_keys
from outbox.webhooks.verify import VerificationError, new_secret, verify
from tests.webhooks.deliveries import OTHER_SECRET, SECRET

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
ID = "018f2b1e-0000-7000-8000-000000000000"
BODY = b'{"data":{"text":"Gr\xc3\xbc\xc3\x9fe"}}'


def signed(secret: str = SECRET, *, body: bytes = BODY, id: str = ID, at: datetime = NOW) -> dict[str, str]:
    """Return the headers that the reference implementation of Standard Webhooks makes."""
    return {
        "webhook-id": id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Reference(secret).sign(id, at, body.decode()),
    }


def refused(headers: Any, body: Any = BODY, secrets: Any = SECRET, **options: Any) -> str:
    with pytest.raises(VerificationError) as caught:
        verify(headers, body, secrets, **{"now": NOW} | options)
    return str(caught.value)


class TestAccepted:
    def test_what_the_reference_implementation_signs(self) -> None:
        assert verify(signed(), BODY, SECRET, now=NOW) == ID

    @pytest.mark.parametrize(
        "form",
        [
            dict,
            MappingProxyType,
            lambda headers: list(headers.items()),
            lambda headers: iter(headers.items()),
            lambda headers: {name.title(): value for name, value in headers.items()},
            lambda headers: {name.upper().encode(): value.encode() for name, value in headers.items()},
            lambda headers: [[name.encode(), f" {value} "] for name, value in headers.items()],
            lambda headers: headers | {"x-other": "ä", "cookie": 7, 7: 7, None: None, b"\xff": b"\xff"},
        ],
    )
    def test_headers_in_any_form(self, form: Callable[[dict[str, str]], Any]) -> None:
        assert verify(form(signed()), BODY, SECRET, now=NOW) == ID

    def test_headers_as_the_standard_library_has_them(self) -> None:
        message = Message()
        for name, value in signed().items():
            message[name] = value
        assert verify(message, BODY, SECRET, now=NOW) == ID  # type: ignore[arg-type]

    @pytest.mark.parametrize("form", [bytes, bytearray, memoryview, bytes.decode])
    def test_a_body_in_any_form(self, form: Callable[[bytes], Any]) -> None:
        assert verify(signed(), form(BODY), SECRET, now=NOW) == ID

    @pytest.mark.parametrize("body", [b"", b"\x00\xff\xfe", b"x" * 1_000_000])
    def test_any_body(self, body: bytes) -> None:
        key = base64.b64decode(SECRET.removeprefix("whsec_"))
        digest = hmac.digest(key, f"{ID}.{NOW.timestamp():.0f}.".encode() + body, "sha256")
        headers = signed() | {"webhook-signature": f"v1,{base64.b64encode(digest).decode()}"}
        assert verify(headers, body, SECRET, now=NOW) == ID

    @pytest.mark.parametrize("secrets", [SECRET, [SECRET], (OTHER_SECRET, SECRET), {SECRET: 1}, iter([SECRET])])
    def test_one_secret_or_several(self, secrets: Any) -> None:
        assert verify(signed(), BODY, secrets, now=NOW) == ID

    def test_a_secret_without_its_prefix(self) -> None:
        assert verify(signed(), BODY, SECRET.removeprefix("whsec_"), now=NOW) == ID

    @pytest.mark.parametrize("before", ["v1,AAAA", "v1a,AAAA v2,AAAA", "garbage", ",", "v1", "v1,v1,v1"])
    def test_other_signatures_beside_the_matching_one(self, before: str) -> None:
        headers = signed()
        for signatures in (f"{before} {headers['webhook-signature']}", f"{headers['webhook-signature']} {before}"):
            assert verify(headers | {"webhook-signature": signatures}, BODY, SECRET, now=NOW) == ID

    def test_twenty_signatures_are_looked_at(self) -> None:
        headers = signed()
        right = headers["webhook-signature"]
        assert verify(headers | {"webhook-signature": "v1,A " * 19 + right}, BODY, SECRET, now=NOW) == ID
        refused(headers | {"webhook-signature": "v1,A " * 20 + right})

    @pytest.mark.parametrize("seconds", [-300, -299, 0, 299, 300])
    def test_five_minutes_of_difference(self, seconds: int) -> None:
        assert verify(signed(), BODY, SECRET, now=NOW + timedelta(seconds=seconds)) == ID

    def test_the_default_for_now_is_the_current_time(self) -> None:
        assert verify(signed(at=datetime.now(UTC)), BODY, SECRET) == ID

    @given(st.text(min_size=1), st.binary(max_size=100), st.integers(1, 3))
    def test_whatever_we_sign(self, text: str, body: bytes, keys: int) -> None:
        secrets = [new_secret() for _ in range(keys)]
        id = base64.urlsafe_b64encode(text.encode("utf-8", "replace")[:100]).decode()
        timestamp = str(int(NOW.timestamp()))
        signatures = [key.sign(id.encode(), timestamp.encode(), body).decode() for key in read_keys(secrets)]
        headers = {"webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": " ".join(signatures)}
        for secret in secrets:
            assert verify(headers, body, secret, now=NOW) == id


class TestRefused:
    def test_another_secret(self) -> None:
        assert "No signature matches" in refused(signed(OTHER_SECRET))

    @pytest.mark.parametrize("body", [b"", BODY + b" ", BODY.replace(b":", b": "), BODY[:-1]])
    def test_another_body(self, body: bytes) -> None:
        assert "No signature matches" in refused(signed(), body)

    def test_another_id(self) -> None:
        assert "No signature matches" in refused(signed() | {"webhook-id": "another"})

    def test_another_time(self) -> None:
        later = str(int(NOW.timestamp()) + 1)
        assert "No signature matches" in refused(signed() | {"webhook-timestamp": later})

    @pytest.mark.parametrize(
        ("seconds", "said"), [(301, "301 seconds ago, and 300"), (-301, "301 seconds from now"), (86_400, "86400")]
    )
    def test_a_request_that_is_too_old_or_from_the_future(self, seconds: int, said: str) -> None:
        assert said in refused(signed(), now=NOW + timedelta(seconds=seconds))

    @pytest.mark.parametrize("seconds", [11, -11])
    def test_the_tolerance_is_the_receivers(self, seconds: int) -> None:
        refused(signed(), now=NOW + timedelta(seconds=seconds), tolerance=timedelta(seconds=10))
        verify(signed(), BODY, SECRET, now=NOW + timedelta(seconds=seconds), tolerance=timedelta(seconds=12))

    @pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
    def test_a_header_that_is_missing_or_empty_or_doubled_or_invalid(self, name: str) -> None:
        headers = signed()
        assert refused({other: value for other, value in headers.items() if other != name}) == f"{name} is missing."
        assert refused(headers | {name: ""}) == f"{name} is missing."
        assert refused(headers | {name: " \t"}) == f"{name} is missing."
        assert refused([*headers.items(), (name.upper(), headers[name])]) == f"{name} is there twice."
        assert refused([(name, ""), *headers.items()]) == f"{name} is there twice."
        for odd in ("ä", b"\xe4", "\udc80", None, 7, [headers[name]], "x" * 5_000):
            assert refused(headers | {name: odd}).startswith(f"{name} is not ASCII text")

    @pytest.mark.parametrize("timestamp", ["now", "-1", "+1", "1.5", "1e9", "0x1", "1_000", "9" * 13, "nan", "1 2"])
    def test_an_invalid_timestamp(self, timestamp: str) -> None:
        assert "webhook-timestamp is invalid" in refused(signed() | {"webhook-timestamp": timestamp})

    def test_a_timestamp_beyond_the_calendar(self) -> None:
        moment = datetime.fromtimestamp(0, UTC)
        assert "seconds ago" in refused(signed(at=moment))

    @pytest.mark.parametrize("id", ["a.b", "a b", "a\x00", "x" * 256])
    def test_an_invalid_id(self, id: str) -> None:
        """With a full stop in it, what is signed could be split in two ways."""
        assert "webhook-id is invalid" in refused(signed(id=id))

    @pytest.mark.parametrize("headers", [None, 7, "webhook-id", b"x", object(), [1], [("a",)], [("a", "b", "c")]])
    def test_invalid_headers(self, headers: Any) -> None:
        refused(headers)

    def test_headers_that_raise(self) -> None:
        class Trap(dict[str, str]):
            def items(self) -> Any:
                raise RuntimeError("hush")

        assert refused(Trap()) == "The headers can't be read: RuntimeError."

        class Name(str):
            __slots__ = ()

            def lower(self) -> str:
                raise RuntimeError("hush")

        assert refused({Name("webhook-id"): ID}) == "The headers can't be read: RuntimeError."

    @pytest.mark.parametrize("body", [None, 7, "\udc80", ["x"], {"data": 1}])
    def test_an_invalid_body(self, body: Any) -> None:
        assert "body" in refused(signed(), body)

    def test_a_body_that_was_released(self) -> None:
        view = memoryview(BODY)
        view.release()
        assert "The body can't be read" in refused(signed(), view)

    @pytest.mark.parametrize("secrets", ["", [], None, 7, b"x", ["x"], [SECRET, ""], [SECRET, None], "whsec_QUJD", {}])
    def test_invalid_secrets(self, secrets: Any) -> None:
        """An invalid secret is an error even if another one matches."""
        assert "Nothing can be verified" in refused(signed(), secrets=secrets)

    def test_secrets_that_raise(self) -> None:
        def trap() -> Any:
            yield SECRET
            raise RuntimeError("hush")

        assert refused(signed(), secrets=trap()) == "The secrets can't be read: RuntimeError."

    @pytest.mark.parametrize(
        "odd",
        [
            {"tolerance": None},
            {"tolerance": 300},
            {"now": "now"},
            {"now": NOW.timestamp()},
            {"now": NOW.replace(tzinfo=None)},
        ],
    )
    def test_an_invalid_tolerance_or_now(self, odd: dict[str, Any]) -> None:
        """It is an error whether the signature matches or not."""
        for headers in (signed(), signed(OTHER_SECRET)):
            with pytest.raises(VerificationError, match="a timedelta, and now a datetime with a timezone"):
                verify(headers, BODY, SECRET, **{"now": NOW} | odd)

    @pytest.mark.parametrize("now", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
    def test_a_time_at_either_end_of_the_calendar(self, now: datetime) -> None:
        assert "seconds" in refused(signed(), now=now)

    def test_what_the_reference_implementation_refuses(self) -> None:
        headers = signed(OTHER_SECRET, at=datetime.now(UTC))
        with pytest.raises(WebhookVerificationError):
            Reference(SECRET).verify(BODY, headers)
        refused(headers, now=datetime.now(UTC))


class TestSecrecy:
    @pytest.mark.parametrize("body", [BODY, b"other"])
    def test_no_error_contains_a_secret_or_a_signature(self, body: bytes) -> None:
        right = signed(body=body)["webhook-signature"]
        errors = [
            refused(signed(OTHER_SECRET), body),
            refused(signed(body=body), body, now=NOW + timedelta(days=1)),
            refused(signed(), body, secrets=[SECRET, SECRET + "!"]),
            refused(signed() | {"webhook-id": "a.b"}, body),
        ]
        for error in errors:
            assert SECRET.removeprefix("whsec_")[:10] not in error
            assert right.removeprefix("v1,") not in error

    def test_every_signature_is_compared_with_every_key_whatever_was_found(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compared = []
        compare = hmac.compare_digest

        def count(left: bytes, right: bytes) -> bool:
            compared.append((type(left), type(right)))
            return compare(left, right)

        monkeypatch.setattr(hmac, "compare_digest", count)
        headers = signed()
        headers["webhook-signature"] += " v1,AAAA v1,BBBB"
        verify(headers, BODY, [SECRET, OTHER_SECRET], now=NOW)
        assert compared == [(bytes, bytes)] * 6


SCALARS = st.one_of(st.none(), st.integers(), st.text(), st.binary())
NAMES = st.sampled_from(["webhook-id", "Webhook-Timestamp", b"webhook-signature", "WEBHOOK-ID", "other"])
PAIRS = st.lists(st.tuples(st.one_of(NAMES, SCALARS), SCALARS), max_size=6)


@given(
    headers=st.one_of(
        SCALARS,
        PAIRS,
        st.dictionaries(st.one_of(NAMES, SCALARS), SCALARS, max_size=6),
        st.builds(lambda changes: signed() | changes, st.dictionaries(NAMES, SCALARS, max_size=2)),
        st.just(signed()),
    ),
    body=st.one_of(SCALARS, st.just(BODY)),
    secrets=st.one_of(SCALARS, st.lists(st.one_of(SCALARS, st.just(SECRET)), max_size=3), st.just(SECRET)),
)
def test_verify_returns_an_id_or_raises_verification_error_whatever_it_gets(
    headers: Any, body: Any, secrets: Any
) -> None:
    try:
        found = verify(headers, body, secrets, now=NOW)
    except VerificationError:
        return
    assert found == ID
    assert body in (BODY, BODY.decode())


class TestNewSecret:
    def test_each_is_different_and_valid(self) -> None:
        made = {new_secret() for _ in range(100)}
        assert len(made) == 100
        for secret in made:
            assert secret.startswith("whsec_")
            assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
            assert verify(signed(secret), BODY, secret, now=NOW) == ID


def test_its_error_is_an_outbox_error() -> None:
    assert issubclass(VerificationError, OutboxError)
    assert VerificationError is outbox.errors.VerificationError
    assert sorted(webhooks.__all__) == ["VerificationError", "new_secret", "verify"]
