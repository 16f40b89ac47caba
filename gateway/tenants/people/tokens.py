"""Verifies tokens: JWTs that the issuer signed for Florin. Pure: the issuer's keys are passed in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt
import orjson
from jwt.exceptions import (
    InvalidAudienceError,
    InvalidIssuerError,
    InvalidSignatureError,
    MissingRequiredClaimError,
    PyJWTError,
)

from gateway.errors import FlorinError

ALGORITHMS: Final[dict[str, str]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
"""Algorithm of a signature → kind of key (`kty`). Only those whose keys are public: with a shared secret,
whoever can verify a token can make one."""
_KINDS: Final = frozenset({"JWT", "AT+JWT", "APPLICATION/AT+JWT", ""})
"""`typ` of ID tokens and access tokens. A logout token, for example, is for something else."""
LONGEST: Final = 16 * 1024
"""Bytes of a token."""

Jwk = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Header:
    """What a token claims about its signature; nothing is verified yet."""

    algorithm: str
    key_id: str
    """Empty if the token names none."""


def header_of(token: str) -> Header:
    """Raises FlorinError."""
    if len(token) > LONGEST:
        raise _invalid(f"it is longer than {LONGEST:,} bytes")
    try:
        header = jwt.get_unverified_header(token)
    except PyJWTError as error:
        raise _invalid("it is not a JWT") from error
    algorithm, key_id, kind = header.get("alg"), header.get("kid", ""), header.get("typ", "")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise _invalid(f"its signature must be {', '.join(ALGORITHMS)}, not {str(algorithm)[:20]!r}")
    if not isinstance(kind, str) or kind.upper() not in _KINDS:
        raise _invalid(f"it is a {str(kind)[:40]!r}, which is not for signing in")
    return Header(algorithm, key_id)


def whose(token: str) -> tuple[str, str]:
    """Issuer and subject that it claims to have; empty: it says nothing. Nothing is verified yet."""
    if len(token) > LONGEST:
        return "", ""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except PyJWTError:
        return "", ""
    return str(claims.get("iss", "")), str(claims.get("sub", ""))


def usable(key: object) -> bool:
    """Whether a key of the issuer's set verifies signatures of tokens."""
    if not isinstance(key, dict) or key.get("use", "sig") != "sig" or "d" in key:
        return False
    operations = key.get("key_ops")
    if isinstance(operations, list) and "verify" not in operations:
        return False
    kind, algorithm = key.get("kty"), key.get("alg", "RS256")
    if not isinstance(kind, str) or not isinstance(algorithm, str):
        return False
    return kind in ALGORITHMS.values() and algorithm in ALGORITHMS


def key_for(header: Header, keys: Sequence[Jwk]) -> Jwk | None:
    """The key that the token names; of a set of one, that one if it names none. None: it is not known."""
    matching = [key for key in keys if key.get("kid") == header.key_id] if header.key_id else list(keys)
    return matching[0] if len(matching) == 1 else None


def verified(
    token: str, header: Header, key: Jwk, *, issuer: str, audience: Collection[str]
) -> dict[str, Any]:
    """The claims of a token that this key signed, for this audience (any of them), by this issuer. Their
    times are not checked. Raises FlorinError."""
    if ALGORITHMS[header.algorithm] != key["kty"] or key.get("alg", header.algorithm) != header.algorithm:
        raise _invalid(f"its key is not one for {header.algorithm}")
    try:
        return jwt.decode(
            token,
            jwt.PyJWK(dict(key), algorithm=header.algorithm),
            algorithms=[header.algorithm],
            issuer=issuer,
            audience=list(audience),
            options={
                "require": ["iss", "aud", "exp", "sub"],
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "enforce_minimum_key_length": True,
            },
        )
    except InvalidSignatureError as error:
        raise _invalid("the issuer's key did not sign it") from error
    except InvalidIssuerError as error:
        raise _invalid(f"its issuer is not {issuer}") from error
    except InvalidAudienceError as error:
        raise _invalid(f"it is for another audience than {' or '.join(audience)}") from error
    except MissingRequiredClaimError as error:
        raise _invalid(f"it has no `{error.claim}`") from error
    except (PyJWTError, ValueError, TypeError, RecursionError) as error:  # PyJWT passes on what JSON raises
        raise _invalid("it is malformed") from error


def keys_of(document: bytes) -> tuple[Jwk, ...]:
    """The usable keys of a JWK set. Raises ValueError."""
    key_set = orjson.loads(document)
    if not isinstance(key_set, dict) or not isinstance(key_set.get("keys"), list):
        raise ValueError("it is not a JWK set")  # noqa: TRY004  # of what was read, like all others
    keys = tuple(key for key in key_set["keys"] if usable(key))
    if not keys:
        raise ValueError("it has no key that verifies signatures")
    return keys


def _invalid(reason: str) -> FlorinError:
    return FlorinError("invalid_token", f"The token is not valid: {reason}.")
