"""Garbage that only the collector finds goes, whatever survived earlier collections. In a process of its own: the
settings are the process's."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
gc.disable()  # as gateway.cli does
import weakref
from gateway.serving.runner import tune_garbage_collection

class Cycle:
    def __init__(self):
        self.itself = self

tune_garbage_collection()
assert gc.get_freeze_count() > 10_000
old = [Cycle() for _ in range(100)]
for _ in range(300_000):  # so that the old ones survive some collections
    Cycle()
seen = [weakref.ref(cycle) for cycle in old]
del old
for number in range(2_500_000):
    Cycle()
    if number % 100_000 == 0 and not any(ref() for ref in seen):
        break
else:
    raise SystemExit("garbage stays")
"""


def test_old_cyclic_garbage_goes():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
