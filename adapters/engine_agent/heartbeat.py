"""Reports to the gateway: each epoch once, and a heartbeat every two seconds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path

from adapters.checks.base_models import read_base
from adapters.checks.tokenizer_files import template_digest
from adapters.engine_agent.addresses import bracketed
from adapters.engine_agent.engine_client import EngineWatch
from adapters.engine_agent.gateway_client import GatewayClient, GatewayDownError, GatewayRefusedError, Json
from adapters.engine_agent.server import AgentServer
from adapters.engine_agent.staging import Cache
from adapters.engine_agent.state import HEARTBEAT_SECONDS, AgentState, HostConfig
from adapters.errors import NotFoundError
from adapters.model import BaseModel

log = logging.getLogger(__name__)

_LEAVE_SECONDS = 3.0


@dataclass(slots=True)
class HeartbeatSender:
    host: HostConfig
    state: AgentState
    gateway: GatewayClient
    watch: EngineWatch
    cache: Cache
    agent_server: AgentServer

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self.state.epoch_changed.clear()
            try:
                if self.state.epoch:
                    await self._send()
            except GatewayRefusedError as error:
                self.state.warn(f"{error}{_advice(error, self.host.name)} The engine stays up.")
            except GatewayDownError as error:
                self.state.warn(f"{error} The engine stays up.")
            except Exception:  # a bug in reporting must not stop a serving engine
                log.exception("Engine %s: heartbeat failed; retrying", self.host.name)
            if (listed := await self.watch.listed()) is not None:
                self.cache.observe(listed)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self.state.epoch_changed.wait()

    async def leave(self) -> None:
        """Release the name immediately."""
        if self.state.registered:
            with contextlib.suppress(GatewayDownError, GatewayRefusedError, TimeoutError):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await self.gateway.heartbeat(self.host.name, self._report() | {"leaving": True})

    async def _send(self) -> None:
        """Raises GatewayDownError, GatewayRefusedError."""
        state, epoch = self.state, self.state.epoch
        if state.registered == epoch:
            if (await self.gateway.heartbeat(self.host.name, self._report()))["known"]:
                return
            log.warning("Engine %s: epoch unknown to the gateway; registering again", self.host.name)
        answer = await self.gateway.register(await self._registration(epoch))
        self.agent_server.token, state.registered = answer["agent_token"], epoch
        log.info("Engine %s: registered, epoch %s", self.host.name, epoch)

    async def _registration(self, epoch: str) -> Json:
        host = self.host
        base = await asyncio.to_thread(_base, host)
        return {
            "name": host.name,
            "url": host.url,
            "base": host.names[0],
            "base_aliases": [*host.names[1:], *base.aliases],
            "gpu_type": host.gpu_type,
            "gpu_count": host.gpu_count,
            "region": host.region,
            "purchase": host.purchase,
            **(
                {"serves": host.serves}
                if host.serves
                else {"slots": host.slots, "cpu_slots": host.cpu_slots, "max_rank": host.max_rank}
            ),
            "seats": host.seats or None,
            "tasks": host.tasks,
            "prompt_scores": host.prompt_scores or None,
            "tenant": host.tenant,
            "trial": host.trial or None,
            "labels": host.labels,
            "host": host.domain,
            "process": {
                "epoch": epoch,
                "instance": self.state.instance,
                "agent": f"{self.agent_server.scheme}://{bracketed(host.agent_address)}:{self.agent_server.port}",
                "stopping": self.state.stopping,
                "config": base.config,
                "chat_template": base.chat_template,
            },
        }

    def _report(self) -> Json:
        return {
            "epoch": self.state.registered,
            "instance": self.state.instance,
            "started": self.state.started,
            "starts": self.state.starts,
            "cached_versions": self.cache.versions,
            "cached_bytes": self.cache.bytes,
        }


def _advice(error: GatewayRefusedError, name: str) -> str:
    if error.status != 401:
        return ""
    return (
        " The gateway has revoked this host's key and drains its engine. To restore it, run "
        f"`florin engine token create --name {name}` as an operator, then `florin engine enrol --name "
        f"{name}` on this host."
    )


def _base(host: HostConfig) -> BaseModel:
    """The base model that adapters are checked against, from this host's copy. Blocking."""
    try:
        base = read_base(host.names[0], host.model, host.environ)
    except NotFoundError as error:
        log.warning("%s", error)
        base = None
    if base is None:
        base = BaseModel(host.names[0], (host.model,) if host.model != host.names[0] else ())
    return base if host.chat_template is None else replace(base, chat_template=_template(host.chat_template))


def _template(given: str) -> str | None:
    """The template given with `--chat-template`: a file, or the template itself."""
    try:
        text = Path(given).read_text() if Path(given).is_file() else given
    except (OSError, UnicodeDecodeError, ValueError):
        text = given
    return template_digest(text)
