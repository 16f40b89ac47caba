"""The engines that tests start, and the programs that ask PEFT, are forked from a server that has imported vLLM and PEFT
once (fork_server.py): a start takes one second of a processor instead of twelve.

What `florin engine run` and the demo start is executed, as with users.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from adapters.model import MAX_STOP_STRINGS
from deploy.demo.engine_env import EngineEnv, engine_environ
from tests.support.forking import FORKED, Forking, start

SERVER = "from tests.engine.fork_server import main; main({fd})"
READ_BY_IMPORTS = {
    "VLLM_TARGET_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1", "VLLM_MAX_STOP_STRINGS": str(MAX_STOP_STRINGS), "VLLM_LOGGING_LEVEL": "ERROR",
}  # fmt: skip
"""All but the last, which is for the server, remain in force in what is forked."""


@contextlib.contextmanager
def forking_engines(env: EngineEnv) -> Iterator[None]:
    def words(command: list[str], _: object) -> tuple[str, ...] | None:
        if command[0] != str(env.python):
            return None
        match command[1:]:
            case ["-m", *_]:
                return tuple(command[1:])
            case ["-c", program, *_]:
                return tuple(command[1:]) if program.startswith(FORKED) else None
            case [script, *arguments]:
                folder = str(Path(script).parent)
                program = f"import runpy, sys; sys.path.insert(0, {folder!r}); runpy.run_path({script!r}, None, '__main__')"
                return "-c", program, *arguments
        return None

    with contextlib.ExitStack() as stack:
        # Linux kills the server when the thread that started it ends.
        starter = stack.enter_context(ThreadPoolExecutor(1))
        started = (start, stack, SERVER, str(env.python), engine_environ() | READ_BY_IMPORTS)
        with Forking(lambda: starter.submit(*started).result(), words).installed():
            yield
