"""Options for fetching from any source: limits, retries and progress."""

from __future__ import annotations

from dataclasses import dataclass

from adapters.progress import Progress, silent

FETCHING = "fetch"
UNPACKING = "unpack"

_LONGEST_PAUSE = 8.0


@dataclass(frozen=True, slots=True)
class FetchOptions:
    max_bytes: int
    """Limit for adapter_config.json and adapter_model.safetensors together, and for a packed archive."""
    allow_private: tuple[str, ...] = ()
    """Private hosts and networks (CIDR) that http(s) URLs may lead to."""
    own_access: bool = True
    """Use the gateway's own credentials and caches: .netrc, HF_TOKEN, the hub cache."""
    progress: Progress = silent
    stall_seconds: float = 20.0
    """Seconds after which a connection that delivers less than 1 KiB per second counts as lost."""
    attempts: int = 5
    """Consecutive connections that may fail without progress."""
    pause_seconds: float = 0.5
    """Seconds before the second attempt; doubles with each, up to 8 s."""

    def pause(self, failures: int) -> float:
        """Seconds to wait, given the number of failures before the last one."""
        return min(self.pause_seconds * 2.0**failures, _LONGEST_PAUSE)
