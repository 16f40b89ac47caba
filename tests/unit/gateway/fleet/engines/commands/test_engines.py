"""`florin engine list` on a terminal of 80 columns."""

from __future__ import annotations

import io
import re
import sys

from gateway.fleet.engines.commands import engines
from gateway.fleet.engines.schemas.engines import Engine
from tests.unit.gateway.commands.test_commands import ENGINE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_engine_is_a_line_of_80_columns(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    named = {"name": "h200-eu-12", "state": "cordoned", "gpu_count": 8, "base": "Qwen3-30B-A3B"}
    engines.show_list([Engine.read(e) for e in (ENGINE | named, ENGINE | {"name": "a2"})], wide=False)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", sys.stdout.getvalue())
    lines = [line for line in shown.splitlines() if line.strip()]
    assert len(lines) == 4  # head, rule, and one for each
    assert max(map(len, lines)) <= 80
    assert lines[2].split() == [
        *("h200-eu-12", "cordoned", "up", "8", "x", "H200", "2/4", "3", "0", "Qwen3-30B-A3B")
    ]
