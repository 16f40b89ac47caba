"""Whether an engine survives requests that score their prompts (`prompt_logprobs`, `echo` with `logprobs`).

In some builds of vLLM, such a request ends the engine if it shares a batch with another. What the operator
declares about an engine comes first. Otherwise, known builds are recognized by their version, unless the
engine has one seat, so that nothing shares a batch there. Any other is tried when a process registers: if the
engine has no requests, it scores a prompt beside another request. An engine that dies of it is registered as
unsafe, so that neither its next process nor another engine of that version and GPU type is tried."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Literal

from adapters.drivers import driver_of
from adapters.errors import EngineError
from adapters.model import Engine
from adapters.placement.engine_client import EngineClient
from gateway.metering.engine_metrics import BadSampleError, EngineMetrics, read_metrics

log = logging.getLogger(__name__)

TRIAL_SECONDS: Final = 20.0
"""The engine may compile first; its agent waits for the registration."""
UNSAFE_VERSIONS: Final = ("0.32.",)
"""Prefixes of versions that are not tried. 0.32: the build for CPUs dies, and reports the same version as the
others."""


async def learn(engine_client: EngineClient, engine: Engine, known: Iterable[Engine], now: int) -> Engine:
    """`engine`, with its version, what its process has shown of unloads, and whether it scores prompts
    safely. `known`: the registered engines; `now`: Unix microseconds. Raises EngineError if the engine does
    not answer."""
    metrics = await _metrics(engine_client, engine, now)
    started = (metrics.sample.began if metrics.sample else 0) or 0
    engine = replace(engine, version=await engine_client.version(engine), started=started)
    old = next((e for e in known if e.name == engine.name and _same_process(e, engine)), None)
    if old is not None:
        engine = replace(engine, unloads=old.unloads)
    if not driver_of(engine).capabilities.prompt_scores:
        return replace(engine, prompt_scores="unsafe")
    if "generate" not in engine.tasks or engine.declared_scores:
        return engine
    if old is not None and not old.declared_scores and old.prompt_scores != "unknown":
        return replace(engine, prompt_scores=old.prompt_scores)
    if not engine.version or is_unsafe(engine, known):
        return replace(engine, prompt_scores="unsafe" if engine.version else "unknown")
    if metrics.running or metrics.waiting:
        return engine
    return replace(engine, prompt_scores=await _try(engine_client, engine))


def is_unsafe(engine: Engine, known: Iterable[Engine]) -> bool:
    """Whether engines of its version die of it, as far as is known."""
    build = _build(engine)
    return (engine.seats != 1 and engine.version.startswith(UNSAFE_VERSIONS)) or any(
        other.prompt_scores == "unsafe" and not other.declared_scores and _build(other) == build
        for other in known
    )


def _build(engine: Engine) -> tuple[str, str, bool]:
    """And whether requests share a batch."""
    return engine.version, engine.gpu_type, engine.seats == 1


def _same_process(old: Engine, new: Engine) -> bool:
    def process(engine: Engine) -> tuple[str, str, int, str]:
        return engine.url, engine.epoch, engine.started, engine.version

    return process(old) == process(new) and bool(new.epoch or new.started)


async def _metrics(engine_client: EngineClient, engine: Engine, now: int) -> EngineMetrics:
    try:
        return read_metrics(await engine_client.metrics(engine), now, names=driver_of(engine).metrics)
    except BadSampleError:
        return EngineMetrics()
    except EngineError as error:
        if error.status is None or engine.driver == "vllm":
            raise
        return EngineMetrics()  # its metrics are optional


async def _try(engine_client: EngineClient, engine: Engine) -> Literal["safe", "unsafe", "unknown"]:
    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            await engine_client.score_prompts(engine)
    except TimeoutError:
        log.warning("Engine %s took too long to score a prompt; register it again to retry", engine.name)
        return "unknown"
    except EngineError as error:
        if error.status and error.status < 500:
            log.info("Engine %s does not score prompts: %s", engine.name, error)
        else:
            log.warning(
                "Engine %s failed while scoring a prompt beside another request, and may have to be "
                "restarted. vLLM %s on %s counts as unsafe from now on: %s",
                engine.name,
                engine.version,
                engine.gpu_type,
                error,
            )
        return "unsafe"
    return "safe"
