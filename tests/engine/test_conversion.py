"""Converted adapters answer on a real engine as PEFT has what they were converted from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import httpx
import numpy as np

from adapters.conversion.adapter_files import read_adapter
from adapters.conversion.base_weights import read_base_weights
from adapters.conversion.convert import convert
from adapters.conversion.merge import compress
from adapters.conversion.output import write_adapter
from deploy.demo.engine_env import EngineEnv, engine_environ
from deploy.demo.engines import Fleet
from tests.engine.test_checks import ask, peft_answers, post

SCRIPT = Path(__file__).with_name("peft_conversions.py")


def test_converted_adapters_answer_as_peft_has_them(
    repaired_lone: Fleet, engine_env: EngineEnv, tmp_path: Path
):
    """What is exact, on the engine. Approximations in PEFT, because this engine takes no rank above 8: the
    announced error falls with the rank, and with it the distance to what the original answers."""
    model, engine = repaired_lone.model, repaired_lone.engines[0]
    made, base = tmp_path / "made", read_base_weights(model.base)
    command = [str(engine_env.python), str(SCRIPT), str(model.base), str(made)]
    done = subprocess.run(command, capture_output=True, text=True, env=engine_environ(), check=False)
    assert done.returncode == 0, done.stderr[-2000:]

    def converted(name: str, rank: int | None, initial: Path | None = None) -> Path:
        source = read_adapter(made / name)
        result = convert(source, base, rank=rank, initial=read_adapter(initial) if initial else None)
        out = tmp_path / f"{name}-{rank}"
        write_adapter(out, result, source, {"command": "convert"}, replace=False)
        return out

    exact = {name: converted(name, None) for name in ("lm_head", "tokens")}
    dora = {rank: converted("dora", rank) for rank in (8, 64, 128)}
    small = tmp_path / "rank16"
    large = read_adapter(made / "rank64")
    lost = compress(large, rank=16)
    write_adapter(small, lost, large, {"command": "compress"}, replace=False)
    sources = [made / name for name in (*exact, "dora", "rank64")]
    told = peft_answers(model, engine_env, [*sources, *dora.values(), small])

    for name, directory in {**exact, "dora": dora[8]}.items():
        body = {"lora_name": f"converted-{name}", "lora_path": str(directory)}
        assert post(engine, "/v1/load_lora_adapter", body).status_code == httpx.codes.OK
        answer = ask(engine, f"converted-{name}")
        post(engine, "/v1/unload_lora_adapter", {"lora_name": f"converted-{name}"})
        assert answer
        expected = told[str(directory if name == "dora" else made / name)]
        assert np.allclose(answer.logprobs[: len(expected)], expected, atol=5e-3), name

    wanted = np.array(told[str(made / "dora")])
    far = [float(np.abs(told[str(dora[rank])] - wanted).max()) for rank in (8, 64, 128)]
    assert far[2] < 1e-3, "at full rank nothing is lost"
    assert far[2] < far[1] < far[0]
    assert lost.error > 0.1
    assert told[str(small)] != told[str(made / "rank64")]
