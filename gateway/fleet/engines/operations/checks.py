"""Checks an engine before it is registered, and reads its base model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from adapters.checks.base_models import base_aliases, may_be_read, read_base_config, read_chat_template
from adapters.drivers import DRIVERS, driver_of
from adapters.drivers.driver import Limits, Listing
from adapters.errors import ConflictError, EngineError, NotFoundError
from adapters.model import BaseModel, Engine
from adapters.placement.engine_client import EngineClient
from gateway.errors import FlorinError

_SHAPE_FIELDS = (
    "architectures",
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)
"""What makes two config.json two models; the rest (library versions, defaults) may differ between hosts."""


class BaseFields(Protocol):
    """The fields of a registration that concern the base model."""

    @property
    def base(self) -> str: ...
    @property
    def base_config(self) -> str | None: ...
    @property
    def base_aliases(self) -> tuple[str, ...]: ...
    @property
    def brought(self) -> tuple[dict[str, Any] | None, str | None] | None:
        """Config and template digest, as the engine's own host has them; None: not reported."""


def normal_url(url: str) -> str:
    """The engine's root: no trailing slash, no /v1. Raises FlorinError."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise _bad_url(url) from error
    odd = parts.username is not None or parts.query or parts.fragment or not url.isprintable()
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0 or odd:
        raise _bad_url(url)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc.lower(), path, "", ""))


def _bad_url(url: str) -> FlorinError:
    shown = ascii(url[:200])
    return FlorinError("invalid_value", f"url {shown} must look like http://10.0.0.7:8000.", param="url")


async def verify(engine_client: EngineClient, engine: Engine) -> Listing:
    """What the engine says it serves. Raises EngineError when that does not fit the registration."""
    driver, where = driver_of(engine), f"{engine.name} at {engine.url}"
    kind = await engine_client.recognize(engine)
    if kind is not None and kind != engine.driver:
        raise EngineError(
            f"{where} is {DRIVERS[kind].title}, not {driver.title}: register it with --driver {kind}."
        )
    if kind is None and engine.driver != "vllm":
        raise EngineError(f"{where} does not answer as {driver.title} does.")
    listing = await engine_client.serving(engine)
    if engine.model not in listing.bases:
        serves = ", ".join(sorted(listing.bases)) or "no base model"
        advice = f": start it with --served-model-name {engine.model}" if engine.serves else ""
        raise EngineError(f"{where} serves {serves}, not {engine.model}{advice}.")
    takes = await engine_client.takes_adapters(engine)
    limits = await engine_client.limits(engine) if takes else Limits(loras=False)
    if limits.loras is False:
        raise EngineError(f"{where} cannot load adapters at run time: {driver.advice}.")
    for task in engine.tasks if engine.driver == "vllm" else ():
        if not await engine_client.serves(engine, task):
            raise EngineError(f"{where} does not {task}: register it with the --tasks that it supports.")
    if limits.slots is not None and limits.slots != engine.slots:
        raise EngineError(
            f"{where} runs with {driver.slots_flag} {limits.slots}, not {engine.slots}: register it with as "
            "many --slots."
        )
    if limits.max_rank is not None and limits.max_rank < engine.max_rank:
        raise EngineError(
            f"{where} takes ranks up to {limits.max_rank}, not {engine.max_rank}: lower --max-rank."
        )
    return listing


async def read_base(body: BaseFields, listing: Listing | None, folders: Sequence[Path]) -> BaseModel:
    """The base model as described by a registration: its config if readable, and all its names. `folders`:
    see `may_be_read`. Raises FlorinError, NotFoundError."""
    root = listing.bases.get(body.base, "") if listing else ""
    local = bool(root) and await asyncio.to_thread(may_be_read, root, folders)
    config = await _config(body, root if local else "")
    if body.brought is None:
        template = await asyncio.to_thread(read_chat_template, body.base_config or (root if local else ""))
    else:
        template = body.brought[1]
    aliases = base_aliases(body.base, root, local=local)
    return BaseModel(body.base, (*aliases, *body.base_aliases), config, template)


def merge_base(known: BaseModel | None, claimed: BaseModel) -> BaseModel:
    """Complete what is known of a base model with what a registration says. Raises ConflictError if the two
    are different models."""
    known = known or BaseModel(claimed.name)
    if claimed.config is not None and known.config is not None:
        check_same(claimed.name, known.config, claimed.config)
    aliases = dict.fromkeys((*known.aliases, *claimed.aliases))
    aliases.pop(claimed.name, None)
    return replace(
        known,
        aliases=tuple(aliases),
        config=known.config or claimed.config,
        chat_template=known.chat_template if claimed.chat_template is None else claimed.chat_template,
    )


async def _config(body: BaseFields, root: str) -> dict[str, Any] | None:
    if body.brought is not None:
        return body.brought[0]
    if body.base_config is None:
        return await asyncio.to_thread(read_base_config, root) if root else None
    if not body.base_config.startswith("/"):
        raise FlorinError("invalid_value", "base_config must be an absolute path.", param="base_config")
    config = await asyncio.to_thread(read_base_config, body.base_config)
    if config is None:
        raise NotFoundError(f"There is no config.json at {body.base_config} on the gateway's host.")
    return config


def check_same(base: str, known: dict[str, Any], claimed: dict[str, Any]) -> None:
    """Raises ConflictError when two config.json are two models'."""
    for field in _SHAPE_FIELDS:
        before, now = _value(known, field), _value(claimed, field)
        if before != now:
            raise ConflictError(
                f"Base model {base} is known with {field} {before!r}, but this engine's has "
                f"{now!r}: another model needs another name (--served-model-name)."
            )


def _value(config: dict[str, Any], field: str) -> object:
    """Models that also see keep the language model's dimensions one level down."""
    text = config.get("text_config")
    return text[field] if isinstance(text, dict) and field in text else config.get(field)
