"""The browser in which tests use the console: `python -m tests.tools.browser.environment` installs it.

A headless Chromium with its libraries and fonts, and axe-core, which finds what people with a screen reader
or works without a mouse would run into. They come from npm, pinned by package-lock.json, and are kept in the
user's cache (205 MB). Playwright's own download needs hosts that are no package registries.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.demo.cache import built, digest

_HERE = Path(__file__).parent
_RECIPE = ("package.json", "package-lock.json", "unpack.mjs", "fonts.conf", "environment.py")
_INSTALLED = ("chromium", "chromium-browser", "google-chrome")


class BrowserUnavailableError(Exception):
    """Here is no browser, and none can be installed; the message says why."""


@dataclass(frozen=True)
class Browser:
    executable: Path
    environment: dict[str, str]
    """What its process needs beside the usual variables."""
    axe: Path
    """axe-core as one script."""


def browser(say: Callable[[str], None] = lambda _: None) -> Browser:
    """Chromium, installed if necessary. FLORIN_BROWSER names another one. Raises BrowserUnavailableError."""
    home = _installed(say)
    axe = home / "axe.min.js"
    if named := os.environ.get("FLORIN_BROWSER"):
        if not (path := Path(named)).is_file():
            raise BrowserUnavailableError(f"FLORIN_BROWSER names {named}, which is not a file.")
        return Browser(path, {}, axe)
    if _has_packed():
        fonts, libraries = home / "fonts.conf", home / "lib"
        return Browser(
            home / "chromium", {"FONTCONFIG_FILE": str(fonts), "LD_LIBRARY_PATH": str(libraries)}, axe
        )
    for name in _INSTALLED:
        if executable := shutil.which(name):
            return Browser(Path(executable), {}, axe)
    raise BrowserUnavailableError(
        "The packed Chromium is for Linux on x86-64: install Chromium, or name one with FLORIN_BROWSER."
    )


def _has_packed() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


def _installed(say: Callable[[str], None]) -> Path:
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise BrowserUnavailableError(f"{tool} is not installed, and the browser comes from npm.")

    def install(directory: Path) -> None:
        say("Installing Chromium and axe-core from npm (75 MB)…")
        for name in _RECIPE[:2]:
            shutil.copy(_HERE / name, directory)
        _run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], directory)
        _unpack(directory, directory / "node_modules")
        shutil.rmtree(directory / "node_modules")

    name = f"browser-{digest(*((_HERE / file).read_bytes() for file in _RECIPE))}"
    return built(name, install, lambda: say("Waiting for another process that installs the browser…"))


def _unpack(home: Path, packages: Path) -> None:
    """What is needed of the packages, in `home`."""
    shutil.copy(packages / "axe-core" / "axe.min.js", home)
    (home / "fonts.conf").write_text((_HERE / "fonts.conf").read_text().replace("@HOME@", str(home)))
    if not _has_packed():
        return
    packed = packages / "@sparticuz" / "chromium" / "bin"
    for archive in ("al2023.tar", "fonts.tar"):
        _decompress(packed / f"{archive}.br", home / archive)
        with tarfile.open(home / archive) as tar:
            tar.extractall(home, [member for member in tar if member.name != "fonts.conf"], filter="data")
        (home / archive).unlink()
    for font in (packages / "dejavu-fonts-ttf" / "ttf").glob("DejaVuSansMono*.ttf"):
        shutil.copy(font, home / "fonts")
    _decompress(packed / "chromium.br", home / "chromium")
    (home / "chromium").chmod(0o755)


def _decompress(source: Path, target: Path) -> None:
    _run(["node", str(_HERE / "unpack.mjs"), str(source), str(target)])


def _run(command: list[str], cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)  # our own
    if done.returncode:
        raise BrowserUnavailableError(f"{' '.join(command[:4])} failed: {done.stderr[-800:]}")


def main() -> int:
    try:
        print(browser(_say).executable)  # noqa: T201  # its output
    except BrowserUnavailableError as error:
        _say(str(error))
        return 1
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  # its progress


if __name__ == "__main__":
    sys.exit(main())
