"""Installs `oidc-provider`, which the OpenID Foundation has certified: `python -m tests.tools.openid.environment`.

Tests sign in with it as people do with their company's issuer. It comes from npm and takes 3 MB of the user's
cache.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.tools.npm import NpmUnavailableError, npm_environment


def openid_environment() -> Path:
    """The directory with its `node_modules`, installed if necessary. Raises NpmUnavailableError."""
    return npm_environment("openid", Path(__file__).parent)


def main() -> int:
    try:
        print(openid_environment())  # noqa: T201  # its output
    except NpmUnavailableError as error:
        print(error, file=sys.stderr)  # noqa: T201  # its output
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
