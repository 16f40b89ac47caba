import base64
import hashlib
import hmac

import pytest

from gateway.runtime.webhook_signatures import TOLERANCE, SignatureError, signature, verify

NOW = 1_760_000_000
BODY = '{"id": "evt_1", "€": 1}'.encode()
SECRETS = {
    "standard": "whsec_" + base64.b64encode(bytes(range(24))).decode(),
    "stripe": "whsec_" + "a" * 32,
    "paddle": "pdl_ntfset_" + "b" * 32,
}


def signed(scheme, sent_at=NOW, secret=None):
    """As each vendor documents it."""
    key = (secret or SECRETS[scheme]).encode()
    if scheme == "stripe":
        digest = hmac.new(key, b"%d.%b" % (sent_at, BODY), hashlib.sha256).hexdigest()
        return {"stripe-signature": f"t={sent_at},v1={digest},v0={'0' * 64}"}
    if scheme == "paddle":
        digest = hmac.new(key, b"%d:%b" % (sent_at, BODY), hashlib.sha256).hexdigest()
        return {"paddle-signature": f"ts={sent_at};h1={digest}"}
    key = base64.b64decode(key.removeprefix(b"whsec_"))
    digest = hmac.new(key, b"msg_1.%d.%b" % (sent_at, BODY), hashlib.sha256).digest()
    text = base64.b64encode(digest).decode()
    return {"webhook-id": "msg_1", "webhook-timestamp": str(sent_at), "webhook-signature": f"v1a,x v1,{text}"}


@pytest.mark.parametrize("scheme", SECRETS)
def test_what_is_signed_with_the_secret_is_accepted_and_nothing_else(scheme):
    secret = SECRETS[scheme]
    other = secret.replace("AAEC", "BBEC") if scheme == "standard" else secret + "x"
    for sent_at in (NOW, NOW - TOLERANCE, NOW + TOLERANCE):
        verify(scheme, signed(scheme, sent_at), BODY, f"{other} {secret}", NOW)
    headers = signed(scheme)
    moved = {name: text.replace(str(NOW), str(NOW + 1)) for name, text in headers.items()}
    odd = {name: text.replace(str(NOW), "é") for name, text in headers.items()}
    for refused in (
        (headers, BODY + b" ", secret, "signature"),
        (headers, BODY, other, "signature"),
        (moved, BODY, secret, "signature"),
        (odd, BODY, secret, "signature"),
        ({}, BODY, secret, "no signature"),
        (signed(scheme, NOW - TOLERANCE - 1), BODY, secret, "seconds ago"),
        (signed(scheme, NOW + TOLERANCE + 1), BODY, secret, "clocks"),
    ):
        with pytest.raises(SignatureError, match=refused[-1]):
            verify(scheme, *refused[:-1], NOW)


def test_what_florin_sends_it_would_accept():
    verify("standard", signature("msg_1", NOW, BODY, SECRETS["standard"]), BODY, SECRETS["standard"], NOW)
