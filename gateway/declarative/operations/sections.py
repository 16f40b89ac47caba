"""The sections of a fleet file. A module of its own: `florin export` needs nothing else of the document."""

from __future__ import annotations

from typing import Final

SECTIONS: Final = {
    "bases": "The base models, with the configuration that adapters are checked against.",
    "engines": "The engines, without what their processes report.",
    "tenants": "The customers.",
    "keys": "API keys by id. A new one: `secret: {env: NAME}` or `{file: PATH}`, read by `florin apply`.",
    "adapters": "The adapters and their versions. Versions never change, and their numbers are never reused.",
    "removed": "Removed adapters, with the highest version number that each has used.",
    "prices": "The price book. Prices are never edited: a new price takes effect at its own start.",
    "rate_cards": "What customers pay, by version. A version is never edited: a later one replaces it.",
    "rate_card_assignments": "Whose card it is, from which month; `tenant: null` is every other tenant.",
}
"""Section → what it lists, as a comment in the file and in its reference."""
