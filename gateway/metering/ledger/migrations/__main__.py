"""`python -m gateway.metering.ledger.migrations`: the first step of a pod whose usage log goes with it.

While a gateway migrates the ledger, the others keep their usage in their logs. A pod that ended meanwhile
would lose its log: so a new pod is not ready, and no old one ends, until it is done. A pod that could never
write to the ledger does not begin. If the ledger is away, the pod begins: a gateway serves without it.
"""

from __future__ import annotations

import logging
import sys

from sqlalchemy import make_url

from gateway.config import load_settings
from gateway.metering.ledger.database import (
    LedgerUnavailableError,
    UnknownSchemaError,
    open_engine,
    translated,
)
from gateway.metering.ledger.migrations import migrate
from gateway.observability.logs import log_to_stderr

log = logging.getLogger("florin.metering")


def main() -> int:
    log_to_stderr()
    try:
        with translated():
            engine = open_engine(make_url(load_settings().ledger))
        try:
            migrate(engine)
        finally:
            engine.dispose()
    except UnknownSchemaError as error:
        log.error("%s", error)
        return 1
    except LedgerUnavailableError as error:
        log.warning("%s", error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
