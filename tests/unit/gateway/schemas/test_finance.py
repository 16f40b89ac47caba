from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.schemas.finance import Currency


@pytest.mark.parametrize("text", ["usd", "US", "EURO", "", "US1", "USD\n"])
def test_what_is_no_currency_is_told_what_one_looks_like(text):
    with pytest.raises(ValidationError, match="is not a currency code: three capital letters, like USD"):
        TypeAdapter(Currency).validate_python(text)
