"""The interval of agents' heartbeats."""

from __future__ import annotations

from typing import Final

HEARTBEAT_SECONDS: Final = 2.0
HEARTBEAT_TTL_MS: Final = 6_000
"""Three heartbeats. How long the name of a dead agent stays taken."""
