"""The name of a gateway: all its workers have the same."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Self

from gateway.observability.logs import worker_name


@dataclass(frozen=True, slots=True)
class GatewayName:
    text: str
    """Begins with its host and the id of its process; unique, also where containers share both."""
    started: int
    """Unix microseconds, UTC."""

    @classmethod
    def of_this_process(cls) -> Self:
        """Call it once a gateway, before it forks its workers."""
        return cls(f"{worker_name()}-{secrets.token_hex(3)}", time.time_ns() // 1000)
