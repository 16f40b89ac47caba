"""What every source is fetched under: limits, patience, and who is told how far it is."""

from __future__ import annotations

from dataclasses import dataclass

from adapters.progress import Progress, silent

FETCHING = "fetch"
UNPACKING = "unpack"

_LONGEST_PAUSE = 8.0


@dataclass(frozen=True, slots=True)
class FetchOptions:
    max_bytes: int
    """Of adapter_config.json and adapter_model.safetensors together; of a packed archive as well."""
    allow_private: tuple[str, ...] = ()
    """Hosts and networks (CIDR) that http(s) URLs may lead to although they are not public."""
    progress: Progress = silent
    stall_seconds: float = 20.0
    """A connection on which less than 1 KiB a second comes for so long counts as broken."""
    attempts: int = 5
    """Connections in a row that may break, or be refused for the moment, without a byte gained."""
    pause_seconds: float = 0.5
    """Before the second attempt; doubles with each, up to 8 s."""

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures before the last."""
        return min(self.pause_seconds * 2.0**failures, _LONGEST_PAUSE)
