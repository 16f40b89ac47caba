"""Entry point of the `florin` command. It imports only what the given command needs."""

from __future__ import annotations

import gc
import os
import sys

from adapters.engine_agent.key_protection import HANDED
from gateway.runtime.unknown_variables import unknown


def main() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as in `florin key list >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115  # for as long as the process
    gc.disable()  # during imports, which create little garbage
    if sys.argv[1:] == ["--version"]:
        sys.argv[1] = "version"
    words = sys.argv[1:]
    if words == ["serve"]:
        from gateway.serving import server  # noqa: PLC0415  # needs neither typer nor a client

        sys.exit(server.serve())
    if HANDED not in os.environ:  # otherwise it was reported before this process re-executed itself
        for warning in unknown(os.environ):
            sys.stderr.write(f"florin: {warning}\n")
    from gateway.commands.tree import tree  # noqa: PLC0415  # as above

    tree()(prog_name="florin")


if __name__ == "__main__":
    main()
