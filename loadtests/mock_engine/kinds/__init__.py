"""Engines that are not vLLM, emulated: their control routes, how a request names an adapter, what they refuse
and in which words, where their counts are, and their metrics. See the docstrings in `adapters.drivers` for
what was read in each one's source; nothing here uses that code.

The answers' texts are the mock engine's. `received` has the requests as they came.
"""

from __future__ import annotations

from loadtests.mock_engine.kinds.lorax import LoraxMock
from loadtests.mock_engine.kinds.other_engine import OtherEngine
from loadtests.mock_engine.kinds.sglang import SglangMock
from loadtests.mock_engine.kinds.tgi import TgiMock
from loadtests.mock_engine.kinds.trtllm import TrtllmMock

__all__ = ["LoraxMock", "OtherEngine", "SglangMock", "TgiMock", "TrtllmMock"]
