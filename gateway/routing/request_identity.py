"""One request as suspicion sees it: whose it is, and how it is recognised."""

from __future__ import annotations

import hashlib

from gateway.routing.query_of_death import Group, Witness

_WHOLE = 128 * 1024
"""Bytes of a payload up to which all of it is hashed; of a longer one the ends and its length. So the hash of
any request takes about 0.1 ms at most, and hundreds of them no second, when an engine dies."""
_SMALL = 16 * 1024
"""Bytes of a payload that is kept as long as the request lasts."""


class RequestIdentity:
    """Its fingerprint is made only when something has gone wrong; afterwards the payload is let go."""

    __slots__ = ("_fingerprint", "_key", "_payload", "_what", "answered", "group")

    def __init__(self, group: Group, *, what: str, payload: bytes, key: bytes) -> None:
        """`what` is asked of whom, beyond the payload: endpoint, version. `key`: at most 64 bytes."""
        self.group = group
        self.answered = False
        """An engine has answered it."""
        self._what = what
        self._payload = payload
        self._key = key
        self._fingerprint = ""

    def __repr__(self) -> str:
        return f"<RequestIdentity of {self.group}>"

    @property
    def fingerprint(self) -> str:
        """The same for the same request of the same tenant, and telling nothing of what it says."""
        if not self._fingerprint:
            payload = self._payload
            digest = hashlib.blake2b(key=self._key, digest_size=16, person=b"florin-suspect")
            digest.update("\0".join((*self.group, self._what, str(len(payload)), "")).encode())
            if len(payload) <= _WHOLE:
                digest.update(payload)
            else:
                digest.update(payload[: _WHOLE // 2])
                digest.update(payload[-_WHOLE // 2 :])
            self._fingerprint = digest.hexdigest()
            self._payload = b""
        return self._fingerprint

    def begin(self) -> None:
        """It is being answered, perhaps for minutes: it lets a large payload go."""
        if len(self._payload) > _SMALL:
            self.fingerprint  # noqa: B018

    def witness(self, *, begun: bool) -> Witness:
        return Witness(self.fingerprint, self.group, begun)
