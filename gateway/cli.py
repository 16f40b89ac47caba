"""What `florin` does first. It imports only what the command at hand needs."""

from __future__ import annotations

import gc
import os
import sys

from adapters.engine_agent.key_protection import HANDED
from gateway.runtime.unknown_variables import unknown


def main() -> None:
    gc.disable()  # until everything is loaded: nearly all that is made before stays
    words = sys.argv[1:]
    if words == ["serve"]:
        from gateway.serving import server  # noqa: PLC0415  # neither typer nor a client: see above

        sys.exit(server.serve())
    if HANDED not in os.environ:  # else it has been said before this process started itself anew
        for slip in unknown(os.environ):
            sys.stderr.write(f"florin: {slip}\n")
    from gateway.commands.tree import tree  # noqa: PLC0415  # as above

    tree()(prog_name="florin")


if __name__ == "__main__":
    main()
