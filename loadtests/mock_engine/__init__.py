"""A fake vLLM engine: fast enough to measure a gateway with, faulty enough to test one."""

from loadtests.mock_engine.answers import text
from loadtests.mock_engine.engine import MockEngine
from loadtests.mock_engine.faults import Faults
from loadtests.mock_engine.process import MockProcess
from loadtests.mock_engine.state import AdminCall, Call, Spec, State

__all__ = ["AdminCall", "Call", "Faults", "MockEngine", "MockProcess", "Spec", "State", "text"]
