"""Whatever the umask and the directory were: what Florin writes is for its user only."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from pathlib import Path

import httpx2

from loadtests.mock_engine.process import MockProcess
from tests.integration.test_cli import FLORIN, KEY, environment, first_line


def open_to_others(directory: Path) -> list[str]:
    found = []
    for place, directories, files in os.walk(directory):
        for path in (Path(place, name) for name in (*directories, *files)):
            with contextlib.suppress(FileNotFoundError):
                if stat.S_IMODE(path.lstat().st_mode) & 0o077 and "artifacts" not in path.parts:
                    found.append(f"{stat.S_IMODE(path.lstat().st_mode):o} {path.relative_to(directory)}")
    return found


def test_every_file_is_private_under_an_open_umask_in_an_open_directory(tmp_path):
    state = tmp_path / "state"
    (state / "usage").mkdir(parents=True)
    (state / "usage").chmod(0o777)
    state.chmod(0o777)
    env = {"FLORIN_PORT": "0", "FLORIN_STATE_DIR": str(state), "FLORIN_WORKERS": "2"}
    with (
        MockProcess() as engine,
        subprocess.Popen(
            [FLORIN, "serve"], env=environment(**env), stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL, umask=0,
        ) as process,
        httpx2.Client(headers={"authorization": f"Bearer {KEY}"}, timeout=30, trust_env=False) as http,
    ):  # fmt: skip
        try:
            url = first_line(process).split()[-1]

            def say(path: str, **body: object) -> dict:
                answer = http.post(f"{url}/admin/v1/{path}", json=body)
                assert answer.is_success, answer.text
                return answer.json()

            say("tenants", name="acme", base_access=True)
            key = say("keys", tenant="acme")["key"]
            fields = {"base": "base", "gpu_type": "H100", "slots": 2, "max_rank": 8}
            say("engines", name="a1", url=engine.url, **fields)
            body = {"model": "base", "messages": [{"role": "user", "content": "x"}]}
            headers = {"authorization": f"Bearer {key}"}
            assert http.post(f"{url}/v1/chat/completions", json=body, headers=headers).is_success
            assert http.get(f"{url}/finance/v1/usage").is_success
            assert stat.S_IMODE(state.stat().st_mode) == 0o700
            assert open_to_others(state) == []
            names = {path.name for path in state.rglob("*")}
            assert {"ledger.db", "valkey", "valkey.sock", "usage", "appendonlydir"} <= names
        finally:
            process.terminate()
            process.wait(60)
        assert open_to_others(state) == []
