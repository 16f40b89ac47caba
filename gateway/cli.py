"""What `florin` does first. Only what the command at hand needs is imported: `florin_gateway` has called this."""

from __future__ import annotations

import gc
import os
import sys

from adapters.hosts.concealment import HANDED
from gateway.variables import unknown


def main() -> None:
    words = sys.argv[1:]
    if words == ["serve"]:
        gc.disable()  # until everything is loaded (`gateway.runner`): nearly all that is made before stays
        from gateway import server  # noqa: PLC0415  # neither typer nor a client: see above

        sys.exit(server.serve())
    if HANDED not in os.environ:  # else it has been said before this process started itself anew
        for slip in unknown(os.environ):
            sys.stderr.write(f"florin: {slip}\n")
    from gateway.command_tree import tree  # noqa: PLC0415  # likewise

    tree()(prog_name="florin")


if __name__ == "__main__":
    main()
