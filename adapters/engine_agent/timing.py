"""The rhythm in which agents tell the gateway that they live."""

from __future__ import annotations

from typing import Final

BEAT_SECONDS: Final = 2.0
BEAT_TTL_MS: Final = 6_000
"""Three beats. So long is a name kept for an agent that has died."""
