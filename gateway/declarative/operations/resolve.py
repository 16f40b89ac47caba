"""What each object is to become: what the file says of it, and of what it leaves out what there is.

Pure. Everything is a complete spec, as `current` reads it; Refused says what is never done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from adapters.errors import ConflictError
from adapters.model import CanaryOutcome
from adapters.sources.public_uri import led_to
from gateway.costs.periods import instant, instant_or_none, iso
from gateway.costs.prices.jumps import check_price_jump
from gateway.costs.prices.price import (
    Price,
    PriceConflictError,
    PriceError,
    check,
    current,
    rate_micros,
    same_series,
    speedup_millis,
)
from gateway.costs.prices.schemas import NewPrice
from gateway.declarative.operations.current import key_spec, price_spec, tenant_spec
from gateway.declarative.operations.specs import (
    AdapterSpec,
    BaseSpec,
    EngineSpec,
    KeySpec,
    TenantSpec,
    VersionSpec,
)
from gateway.fleet.engines.operations.checks import check_same
from gateway.tenants.directory import Key, Pins, Role, Tenant
from gateway.tenants.operations.terms import updated
from gateway.tenants.schemas.terms import KeyTerms

HISTORY = 32


class DocumentRefusedError(ConflictError):
    """What a file cannot bring about in one object; the message is a sentence for its author."""


def tenant(now: TenantSpec | None, spec: TenantSpec) -> TenantSpec:
    """A file that does not say so neither suspends nor resumes."""
    goal = tenant_spec(updated(Tenant("", base_access=False, created=0), spec, leave={"suspended"}))
    suspended = (now.suspended if now else False) if spec.suspended is None else spec.suspended
    return goal.model_copy(update={"suspended": suspended})


def key(now: KeySpec | None, spec: KeySpec) -> KeySpec:
    """A revoked key never comes back: it may have been stolen, and the file be older than that. What an
    engine's key has settled stays where the file does not say. A rotated key ends when the rotation says, at
    the latest."""
    if now is not None and spec.pins is None and now.engine == spec.engine:
        spec = spec.model_copy(update={"pins": now.pins})
    spec = key_spec(new_key("", spec, created=0))
    if now is not None and now.replaced_by:
        known = (e for e in (now.expires, spec.expires) if e is not None)
        ends = min(known, key=lambda e: instant("expires", e), default=None)
        spec = spec.model_copy(update={"replaced_by": now.replaced_by, "expires": ends})
    if now is None or now.revoked is None:
        return spec
    if spec.revoked is None:
        raise DocumentRefusedError(f"It was revoked at {now.revoked}, and stays so: take it out of the file.")
    return spec.model_copy(update={"revoked": now.revoked})


def new_key(key_id: str, spec: KeySpec, *, created: int) -> Key:
    bare = Key(
        key_id,
        spec.tenant,
        Role(spec.role),
        spec.secret.removeprefix("sha256:"),
        created,
        revoked=instant_or_none("revoked", spec.revoked),
        engine=spec.engine,
        pins=Pins(**spec.pins.model_dump()) if spec.pins else Pins(),
        expires=instant_or_none("expires", spec.expires),
        replaced_by=spec.replaced_by or "",
    )
    return updated(bare, spec, leave=KeySpec.model_fields.keys() - KeyTerms.model_fields.keys())


def base(name: str, now: BaseSpec | None, spec: BaseSpec) -> BaseSpec:
    """Raises ConflictError when its config is another model's."""
    known = now or BaseSpec(aliases=())
    if known.config is not None and spec.config is not None:
        check_same(name, known.config, spec.config)
    stated = {f: v for f in BaseSpec.model_fields if (v := getattr(spec, f)) is not None}
    if spec.aliases is not None:
        stated["aliases"] = tuple(sorted({*spec.aliases} - {name}))
    return known.model_copy(update=stated)


def engine(now: EngineSpec | None, spec: EngineSpec) -> EngineSpec:
    state = spec.state or (now.state if now else None) or "active"
    cpu_slots = spec.slots if spec.cpu_slots is None else spec.cpu_slots
    return spec.model_copy(update={"state": state, "cpu_slots": cpu_slots})


def adapter(
    name: str,
    now: AdapterSpec | None,
    spec: AdapterSpec,
    *,
    retired: Mapping[str, str],
    buried: int = 0,
    outcome: CanaryOutcome | None = None,
) -> AdapterSpec:
    """`buried`: the latest number of a removed adapter of this name. `outcome`: what the guard of its last
    canary decided. Versions that are there and not in the
    file stay: pruning them is another matter."""
    known = {v.number: v for v in now.versions} if now else {}
    latest = int(now.latest[1:]) if now and now.latest else buried
    versions = dict(known)
    for version in spec.versions:
        versions[version.number] = _version(name, known, version, latest, retired)
    split = now if spec.live is None or (now and _decided(now, spec, outcome)) else spec
    live = (split.live if split else None) or _first(versions)
    stated = int(spec.latest[1:]) if spec.latest else 0
    return AdapterSpec.model_construct(
        versions=tuple(v for _, v in sorted(versions.items())),
        live=live,
        canary=split.canary if split else None,
        history=_history(now, spec, live, versions),
        latest=f"v{max(latest, stated, *versions, 0)}",
        pinned=spec.pinned,
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        shared_with=tuple(sorted(spec.shared_with)),
        cost_centre=spec.cost_centre,
        require_eval=spec.require_eval,
        eval_data=spec.eval_data,
    )


def _decided(now: AdapterSpec, spec: AdapterSpec, outcome: CanaryOutcome | None) -> bool:
    """Whether the file still asks for a guarded canary that its guard has ended, made live, or given one of
    its further weights. Then the file is behind, and applying it again undoes nothing."""
    canary, there = spec.canary, now.canary
    if canary is None or canary.guard is None:
        return False
    if there is not None:
        same = (there.version, there.guard, now.live) == (canary.version, canary.guard, spec.live)
        return same and canary.weight < there.weight in canary.guard.then
    if outcome is None or f"v{outcome.version}" != canary.version:
        return False
    if outcome.verdict == "rollback":
        return now.live == spec.live
    return now.live == canary.version and (now.history or ())[-1:] == (spec.live,)


def _first(versions: Mapping[int, VersionSpec]) -> str | None:
    return f"v{min(versions)}" if versions else None


def _version(
    name: str,
    known: Mapping[int, VersionSpec],
    spec: VersionSpec,
    latest: int,
    retired: Mapping[str, str],
) -> VersionSpec:
    """A number means one content for ever."""
    number, id_ = spec.number, f"{name}@{spec.version}"
    there = known.get(number)
    # The same files for two base models are two versions, and one that is there is not compared once more.
    if spec.digest is not None and (there is None or there.digest != spec.digest):
        for other in known.values():
            same = other.digest == spec.digest and spec.base_model in (None, other.base_model)
            if same and other.number != number:
                raise DocumentRefusedError(
                    f"{spec.version} has the files of {other.version}: one content, one number."
                )
    if there is None:
        _check_number(spec, latest, retired.get(id_), id_)
        _check_base(known, spec, id_)
        return spec
    if spec.digest not in (None, there.digest):
        raise DocumentRefusedError(
            f"{spec.version} has other files than the file says ({there.digest}, not {spec.digest}): "
            "versions never change, so new files need a new number."
        )
    same_place = led_to(spec.source, there.source)  # the commit that was found is not given up
    if spec.digest is None and not same_place:
        raise DocumentRefusedError(
            f"{spec.version} came from {there.source}, and versions never change: new files need a new "
            f"number. If the same files are in another place now, add `digest: {there.digest}`."
        )
    if spec.base_model not in (None, there.base_model):
        raise DocumentRefusedError(f"{spec.version} is for {there.base_model}, and versions never change.")
    trusted = there.trusted if spec.trusted is None else spec.trusted
    source = there.source if same_place else spec.source
    return there.model_copy(update={"source": source, "trusted": trusted})


def _check_number(spec: VersionSpec, latest: int, retired: str | None, id_: str) -> None:
    if retired is not None and spec.digest != retired:
        raise DocumentRefusedError(
            f"{id_} is retired: only the same files bring it back (`digest: {retired}`); others need a new "
            "number."
        )
    if spec.number <= latest and spec.digest is None:
        raise DocumentRefusedError(
            f"{id_} was used before and can be restored only with the digest that it had then; "
            f"new files are v{latest + 1}."
        )


def _check_base(known: Mapping[int, VersionSpec], spec: VersionSpec, id_: str) -> None:
    for other in known.values():
        if spec.base_model is not None and spec.base_model != other.base_model:
            raise DocumentRefusedError(
                f"{id_} is for base model {spec.base_model}, and {other.version} for {other.base_model}: "
                "an adapter's name means one base model, so register it under another name."
            )


def _history(
    now: AdapterSpec | None, spec: AdapterSpec, live: str | None, versions: Iterable[int]
) -> tuple[str, ...]:
    """The file's restores one that is not there. One that is goes on as with promotions."""
    there = now.history if now and now.history else ()
    if not there and spec.history:
        known = {f"v{n}" for n in versions}
        return tuple(v for v in spec.history if v in known)[-HISTORY:]
    if now and now.live is not None and live != now.live:
        return (*there, now.live)[-HISTORY:]
    return there


def price(book: Iterable[NewPrice], spec: NewPrice, now: int) -> NewPrice | None:
    """The price to add; None: it stands already, or, for one without `valid_from`, it is the one that holds
    `now`. Raises DocumentRefusedError: prices are never edited."""
    new = to_price(spec)
    standing = [to_price(p) for p in book]
    series = [p for p in standing if same_series(p, new)]
    if spec.valid_from is None:
        begun = (p for p in series if p.valid_from <= now)
        last = current(series, now) or max(begun, key=lambda p: p.valid_from, default=None)
        if last is not None and _says_the_same(replace(new, valid_from=last.valid_from), last):
            return None
        if series:  # then it begins when it is added; only the first of a series reaches back
            new = replace(new, valid_from=now)
        if new.valid_to is not None and new.valid_to <= new.valid_from:
            raise DocumentRefusedError(
                f"It would end at {iso(new.valid_to)}, before it begins: give its valid_from."
            )
        _check(new, standing)
        return price_spec(new).model_copy(update={"valid_from": None})
    return None if _check(new, standing) else price_spec(new)


def check_price(standing: Iterable[NewPrice], new: NewPrice, now: int) -> None:
    """Raises UnconfirmedJumpError if the price may be a slip."""
    price = to_price(new)
    begins = now if new.valid_from is None else price.valid_from
    check_price_jump(replace(price, valid_from=begins), [to_price(p) for p in standing])


def _check(new: Price, standing: Iterable[Price]) -> Price | None:
    """The same price, if it stands already."""
    try:
        return check(new, standing)
    except PriceConflictError as error:
        raise DocumentRefusedError(str(error)) from error


def to_price(spec: NewPrice) -> Price:
    """Without `valid_from` it holds from the beginning. Raises PriceError, PeriodError."""
    start = 0 if spec.valid_from is None else instant("valid_from", spec.valid_from)
    end = instant_or_none("valid_to", spec.valid_to)
    if end is not None and end <= start:
        raise PriceError("valid_to", f"{iso(end)} is not after {iso(start)}.")
    speed = (spec.speedup, spec.speedup_reference, spec.speedup_source)
    if any(speed) and not all(speed):
        raise PriceError("speedup", "A speedup needs the GPU type that it is relative to, and its source.")
    return Price(
        gpu_type=spec.gpu_type,
        rate_micros=rate_micros(spec.rate_per_gpu_hour),
        currency=spec.currency,
        purchase=spec.purchase,
        region=spec.region,
        valid_from=start,
        valid_to=end,
        recorded_at=0,
        speedup_millis=None if spec.speedup is None else speedup_millis(spec.speedup),
        speedup_reference=spec.speedup_reference,
        speedup_source=spec.speedup_source,
    )


def _says_the_same(new: Price, old: Price) -> bool:
    try:
        return check(new, [old]) is not None
    except PriceConflictError:
        return False
