"""`florin serve` whose scheduler does not know which engines have seen a prompt."""

from __future__ import annotations

from unittest.mock import patch

import gateway.cli
from adapters.placement.scheduling.prefix_cache import NOTHING_SEEN
from gateway.routing.prefixes import PrefixMemory


def main() -> None:
    with patch.object(PrefixMemory, "seen", lambda *_: NOTHING_SEEN):
        gateway.cli.main()
