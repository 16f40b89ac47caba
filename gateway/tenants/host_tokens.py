"""Engine hosts, and the controller, that prove who they are with a token of their platform: a pod's, signed
by its cluster, or any workload's JWT. A host's serves as an enrolment token: a claim names the engine, and
its subject determines what the registration is pinned to. The controller's serves as its key."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace

from pydantic import TypeAdapter, ValidationError

from gateway.config import Settings, SettingsError
from gateway.errors import FlorinError
from gateway.tenants.directory import HOST, Key, Pins, Role
from gateway.tenants.people.claims import LEEWAY, check_times, text_of
from gateway.tenants.people.issuer import Issuer
from gateway.tenants.people.tokens import whose

_EXPIRED = "The host's token has expired. Its platform renews it: try again with the new one."


_PINS = TypeAdapter(Pins)
_PINNED = frozenset(field.name for field in fields(Pins))


class HostTokens:
    """Those of one issuer. On the worker's event loop."""

    def __init__(self, settings: Settings, clock: Callable[[], int]) -> None:
        """`clock`: Unix microseconds. Raises TlsError, SettingsError."""
        self.issuer = Issuer(
            settings.host_issuer, ca=settings.host_issuer_ca, token=settings.host_issuer_token_file
        )
        self._audience = settings.host_audience
        self._claim = settings.host_engine_claim
        self._pins = pins_by_subject(settings.host_subjects or "{}")
        self._controller = settings.controller_subject
        self._clock = clock

    def may_be_controller(self, token: bytes) -> bool:
        """Whether the token says that it is the controller's, and so no person's of the same issuer. Nothing
        is verified."""
        claimed = (self.issuer.url, self._controller)
        return bool(self._controller) and whose(token.decode("latin-1")) == claimed

    async def identify(self, token: bytes) -> Key:
        """The host's token as an enrolment token, the controller's as its key: neither is in a registry.
        Raises FlorinError."""
        claims = await self.issuer.claims(token.decode("latin-1"), (self._audience,))
        expires = check_times(claims, self._clock(), _EXPIRED)
        subject, engine = str(claims["sub"]), text_of(claims, self._claim)
        if subject == self._controller:
            return Key(f"{HOST}{subject}", "", Role.CONTROLLER, "", 0, expires=expires + LEEWAY * 1_000_000)
        pins = self._pins.get(subject)
        if pins is None:
            raise FlorinError("no_role", f"Hosts of {subject[:200]!r} may not enrol (FLORIN_HOST_SUBJECTS).")
        if not engine:
            raise FlorinError(
                "invalid_token",
                f"The token names no engine: it has no claim {self._claim!r} (FLORIN_HOST_ENGINE_CLAIM).",
            )
        return Key(
            f"{HOST}{subject}", "", Role.ENROLMENT, "", 0, engine=engine, pins=_of_engine(pins, engine),
            expires=expires + LEEWAY * 1_000_000, label=subject,
        )  # fmt: skip


def pins_by_subject(text: str) -> Mapping[str, Pins]:
    """Raises SettingsError."""
    pins: dict[str, Pins] = {}
    for subject, document in json.loads(text).items():
        if unknown := document.keys() - _PINNED:
            raise SettingsError(
                f"FLORIN_HOST_SUBJECTS: {subject}: {', '.join(sorted(unknown))} is none of "
                f"{', '.join(sorted(_PINNED))}."
            )
        try:
            pins[subject] = _PINS.validate_python(document)
        except ValidationError as error:
            detail = error.errors()[0]
            where = ".".join(map(str, (subject, *detail["loc"])))
            raise SettingsError(f"FLORIN_HOST_SUBJECTS: {where}: {detail['msg']}.") from error
    return pins


def _of_engine(pins: Pins, engine: str) -> Pins:
    if pins.address is None:
        return pins
    return replace(pins, address=pins.address.replace("{engine}", engine))
