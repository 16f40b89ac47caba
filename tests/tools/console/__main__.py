"""`python -m tests.tools.console`: fetch the vendored files again with npm, and write them, their manifest and
their licences. With `--check`: say which files are not what the manifest says; that needs neither npm nor a
network."""

from __future__ import annotations

import sys

from tests.tools.console.vendor import check, fetch


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        wrong = check()
        if wrong:
            sys.stderr.write(f"Not as recorded: {', '.join(wrong)}. Run `python -m tests.tools.console`.\n")
        return 1 if wrong else 0
    fetch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
