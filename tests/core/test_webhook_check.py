"""Signatures of requests that reach us from outside, and those that we send."""

from __future__ import annotations

import base64
import hashlib
import hmac
import inspect
import io
from typing import Any
from uuid import UUID

import pytest

from deuz_workers import (
    SignedRequest,
    UnsignedRequest,
    verify_asgi,
    verify_github_webhook,
    verify_hmac_signature,
    verify_slack_request,
    verify_webhook,
    verify_wsgi,
)
from deuz_workers.core import webhook_check
from deuz_workers.core.webhook import delivery_id, payload_of, secret_of, signature_headers, wait_ms

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
"""The example of the Standard Webhooks libraries."""
HEADERS = {"Webhook-Id": ID, "Webhook-Timestamp": str(AT), "Webhook-Signature": SIGNED}


def reason(found: Any) -> str:
    assert isinstance(found, UnsignedRequest)
    return found.reason


def test_ours_are_signed_as_the_standard_says() -> None:
    """Its own example: the same id, time, body and secret give the same signature, and it is accepted."""
    assert signature_headers([SECRET], ID, AT, BODY) == {name.lower(): value for name, value in HEADERS.items()}
    assert verify_webhook(HEADERS, BODY, SECRET, now=AT) == SignedRequest(BODY)


@pytest.mark.spec("WHK-001")
@pytest.mark.parametrize(
    ("changed", "at", "wanted"),
    [
        ({"Webhook-Signature": ""}, AT, "missing-signature"),
        ({"Webhook-Id": ""}, AT, "missing-signature"),
        ({"Webhook-Signature": "v1,%%%"}, AT, "malformed-signature"),
        ({"Webhook-Signature": "v2,abc"}, AT, "malformed-signature"),
        ({"Webhook-Signature": "v1," + base64.b64encode(b"x" * 32).decode()}, AT, "bad-signature"),
        ({"Webhook-Id": "msg_other"}, AT, "bad-signature"),
        ({"Webhook-Timestamp": ""}, AT, "missing-timestamp"),
        ({"Webhook-Timestamp": "soon"}, AT, "malformed-timestamp"),
        ({"Webhook-Timestamp": "-5"}, AT, "malformed-timestamp"),
        ({}, AT + 301, "stale-timestamp"),
        ({}, AT - 301, "stale-timestamp"),
    ],
)
def test_whatever_is_wrong_has_its_reason(changed: dict[str, str], at: int, wanted: str) -> None:
    """One for each; a body that was changed is a bad signature."""
    assert reason(verify_webhook({**HEADERS, **changed}, BODY, SECRET, now=at)) == wanted
    assert reason(verify_webhook(HEADERS, BODY + b" ", SECRET, now=AT)) == "bad-signature"


@pytest.mark.spec("WHK-001")
async def test_a_body_is_consumed_once() -> None:
    """Whoever checks the same request again is told so; ASGI in pieces and WSGI alike."""
    pieces = [{"type": "http.request", "body": BODY[:5], "more_body": True}, {"type": "http.request", "body": BODY[5:]}]

    async def receive() -> dict[str, Any]:
        return pieces.pop(0)

    def check(headers: Any, body: bytes) -> Any:
        return verify_webhook(headers, body, SECRET, now=AT)

    scope: dict[str, Any] = {"headers": [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]}
    assert await verify_asgi(scope, receive, check) == SignedRequest(BODY)
    assert reason(await verify_asgi(scope, receive, check)) == "body-used"
    environ: dict[str, Any] = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in HEADERS.items()}
    environ |= {"CONTENT_LENGTH": str(len(BODY)), "wsgi.input": io.BytesIO(BODY)}
    assert verify_wsgi(environ, check) == SignedRequest(BODY)
    assert reason(verify_wsgi(environ, check)) == "body-used"
    with pytest.raises(ValueError, match="more than 3 bytes"):
        verify_wsgi({"CONTENT_LENGTH": "4"}, check, most_bytes=3)
    with pytest.raises(ValueError, match="how long"):  # to read -1 bytes is to read all that ever comes
        verify_wsgi({"CONTENT_LENGTH": "-1", "wsgi.input": io.BytesIO(BODY)}, check, most_bytes=3)


@pytest.mark.spec("WHK-002")
def test_signatures_are_compared_in_constant_time() -> None:
    """No digest is compared by `==`: both places that judge one use `hmac.compare_digest`."""
    from deuz_workers.core import webhook

    assert inspect.getsource(webhook.fits).count("hmac.compare_digest") == 1
    assert inspect.getsource(webhook_check.verify_hmac_signature).count("hmac.compare_digest") == 1
    assert "digest ==" not in inspect.getsource(webhook_check) + inspect.getsource(webhook)


@pytest.mark.spec("WHK-003")
def test_github_signs_the_body() -> None:
    """Its published vector."""
    secret, body = "It's a Secret to Everybody", b"Hello, World!"
    digest = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert verify_github_webhook({"X-Hub-Signature-256": f"sha256={digest}"}, body, secret) == SignedRequest(body)
    assert reason(verify_github_webhook({"X-Hub-Signature-256": digest}, body, secret)) == "malformed-signature"
    assert reason(verify_github_webhook({"X-Hub-Signature-256": f"sha256={digest[:-1]}8"}, body, secret)) == "bad-signature"
    assert reason(verify_github_webhook({}, body, secret)) == "missing-signature"


@pytest.mark.spec("WHK-004")
def test_slack_signs_time_and_body() -> None:
    """Fresh, stale and future timestamps; without either header the timestamp is missing first."""
    secret, body, at = "8f742231b10e8888abcd99yyyzzz85a5", b"token=xyzz0WbapA4vBCDEFasx0q6G", 1531420618
    mac = hmac.new(secret.encode(), f"v0:{at}:".encode() + body, hashlib.sha256).hexdigest()
    sent = {"X-Slack-Signature": f"v0={mac}", "X-Slack-Request-Timestamp": str(at)}
    assert verify_slack_request(sent, body, secret, now=at + 300) == SignedRequest(body)
    assert reason(verify_slack_request(sent, body, secret, now=at + 301)) == "stale-timestamp"
    assert reason(verify_slack_request(sent, body, secret, now=at - 301)) == "stale-timestamp"
    assert verify_slack_request(sent, body, secret, now=at + 900, tolerance_seconds=1_000) == SignedRequest(body)
    assert reason(verify_slack_request({}, body, secret, now=at)) == "missing-timestamp"
    late = {**sent, "X-Slack-Request-Timestamp": str(at + 1)}
    assert reason(verify_slack_request(late, body, secret, now=at)) == "bad-signature"


@pytest.mark.spec("WHK-005")
@pytest.mark.parametrize("algorithm", ["sha1", "sha256", "sha512"])
@pytest.mark.parametrize("encoding", ["hex", "base64"])
@pytest.mark.parametrize("prefix", ["", "sig="])
def test_any_hmac_can_be_checked(algorithm: Any, encoding: Any, prefix: str) -> None:
    """Every mix of algorithm, encoding and prefix; what does not decode is malformed, what decodes to another digest is bad."""
    digest = hmac.new(b"key", BODY, algorithm).digest()
    text = digest.hex() if encoding == "hex" else base64.b64encode(digest).decode()
    options: Any = {"header": "X-Signature", "algorithm": algorithm, "encoding": encoding, "prefix": prefix}
    assert verify_hmac_signature({"x-signature": prefix + text}, BODY, "key", **options) == SignedRequest(BODY)
    assert verify_hmac_signature({"x-signature": prefix + text}, BODY, b"key", **options) == SignedRequest(BODY)
    assert reason(verify_hmac_signature({"x-signature": prefix + text}, BODY, "other", **options)) == "bad-signature"
    for broken in (f"{prefix}{text}!", f"{prefix}!", f"other{text}" if prefix else "zz!"):
        assert reason(verify_hmac_signature({"x-signature": broken}, BODY, "key", **options)) == "malformed-signature"


def test_two_secrets_while_one_is_changed() -> None:
    """Signed with both, whoever has either accepts; whoever has neither does not."""
    sent = signature_headers([secret_of("new" * 12, "wh_1"), secret_of("old" * 12, "wh_1")], ID, AT, BODY)
    for master in ("new", "old"):
        assert isinstance(verify_webhook(sent, BODY, secret_of(master * 12, "wh_1"), now=AT), SignedRequest)
    assert reason(verify_webhook(sent, BODY, secret_of("new" * 12, "wh_2"), now=AT)) == "bad-signature"
    assert isinstance(verify_webhook(sent, BODY, [SECRET, secret_of("old" * 12, "wh_1")], now=AT), SignedRequest)
    with pytest.raises(ValueError, match="whsec_"):
        verify_webhook(sent, BODY, "whsec_%%%", now=AT)


def test_a_body_says_what_happened_and_no_secret() -> None:
    """Type, time and the journal's row; texts pass the filter; what cannot be read says so."""
    record = '{"type":"run.failed","error":"sk-abcdefghij0123456789","reason":null}'
    body = payload_of(record, at_ms=1_700_000_000_123, run_id="r", seq=4)
    assert body == (
        '{"type":"run.failed","timestamp":"2023-11-14T22:13:20.123Z","data":{"run_id":"r","seq":4,"error":"***","reason":null}}'
    )
    assert '"type":"run.unreadable"' in payload_of("{", at_ms=0)


def test_a_body_names_the_run_whatever_its_name_looks_like() -> None:
    """Who is told of `***` cannot look it up."""
    body = payload_of('{"type":"run.completed"}', at_ms=0, run_id="sk-order-10023", scope="token=blue")
    assert '"data":{"run_id":"sk-order-10023","scope":"token=blue"}' in body


def test_an_id_is_the_same_whoever_tells_it() -> None:
    """Of endpoint, run and place in its journal."""
    rid = UUID(int=7)
    assert delivery_id("wh_abc", rid, 3) == f"msg_abc_{rid.hex}_3"


def test_waits_grow_and_have_an_end() -> None:
    """From five seconds, twice as long each time, three hours at most; an endpoint may ask for more within that."""
    assert [wait_ms(failures, None) for failures in (0, 1, 2)] == [5_000, 10_000, 20_000]
    assert wait_ms(1_000, None) == 3 * 3_600_000
    assert wait_ms(0, 60_000) == 60_000
    assert wait_ms(0, 10**12) == 3 * 3_600_000
