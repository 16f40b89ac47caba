from pathlib import Path

import pytest

from deploy.demo.engine_env import EngineEnv
from deploy.demo.main import labels


@pytest.mark.parametrize(("gpus", "where"), [(0, "run on the CPU"), (2, "this machine's GPUs")])
def test_the_demo_says_on_screen_what_is_made_up(gpus, where):
    said = labels(EngineEnv(Path("python"), ("vllm", "serve"), gpus))
    assert "h100 and l40s and their prices are made up" in said
    assert where in said
    assert ("patched" in said) is (gpus == 0)
