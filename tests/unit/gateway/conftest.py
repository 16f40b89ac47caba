"""What the tests of any room may ask for: the command line before a stand-in for the gateway, and the finance
routes over a real ledger."""

from __future__ import annotations

from tests.support.command_line import built_once, fake, fake_server, florin  # noqa: F401  # fixtures
from tests.support.finance_routes import ask, client_for, contents, installed, now  # noqa: F401  # fixtures
