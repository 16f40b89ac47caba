"""Where the engines' PyTorch comes from, shown with local indexes: pip's own, and one that imitates PyTorch's."""

from __future__ import annotations

import functools
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from deploy.demo.engine_env import TORCH, EngineEnvError, install_torch

QUIET = Console(quiet=True)
PINNED = next(line for line in TORCH.read_text().splitlines() if line.startswith("torch==")).partition("==")[
    2
]


class Index(SimpleHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_) -> None:
        pass


def put_wheel(index: Path, version: str) -> None:
    (index / "torch").mkdir(parents=True, exist_ok=True)
    about = f"torch-{version}.dist-info"
    with zipfile.ZipFile(index / "torch" / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("torch.py", f"index = {index.name!r}\n")
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str, list[str]]]:
    """The folder of two indexes, `own` and `pytorch`, its URL, and which paths were asked for."""
    folder = tmp_path / "indexes"
    put_wheel(folder / "own", PINNED.partition("+")[0])  # as PyPI has it
    handler = type("Handler", (Index,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"{url}/own")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    try:
        yield folder, url, handler.asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_pips_own_indexes_come_first_then_pytorchs_then_the_explanation(
    served: tuple[Path, str, list[str]], tmp_path: Path
):
    folder, url, asked = served
    environment = tmp_path / "environment"
    install = functools.partial(install_torch, environment, QUIET, [sys.executable], f"{url}/pytorch")

    with pytest.raises(EngineEnvError, match=r"PIP_EXTRA_INDEX_URL") as failure:
        install()
    assert f"{url}/pytorch" in str(failure.value)
    assert "No matching distribution found" in str(failure.value)

    put_wheel(folder / "pytorch", PINNED)
    install()
    [module] = environment.glob("lib/*/site-packages/torch.py")
    assert "pytorch" in module.read_text()

    put_wheel(folder / "own", PINNED)
    module.unlink()
    [about] = environment.glob("lib/*/site-packages/torch-*.dist-info")
    about.rename(about.with_suffix(".old"))
    asked.clear()
    install()
    assert "own" in module.read_text()
    assert not [path for path in asked if path.startswith("/pytorch")]
