"""What a registration may tell of a base model that is known already."""

from __future__ import annotations

import pytest

from adapters.errors import ConflictError
from adapters.model import BaseModel
from gateway.fleet.engines.operations.checks import merge_base

CONFIG = {"model_type": "llama", "hidden_size": 64}


@pytest.mark.parametrize(
    ("known", "told", "merged"),
    [
        (None, BaseModel("m", ("x",), CONFIG, ""), BaseModel("m", ("x",), CONFIG, "")),
        (BaseModel("m", ("x",)), BaseModel("m", ("y", "x")), BaseModel("m", ("x", "y"))),
        (BaseModel("m"), BaseModel("m", ("m",)), BaseModel("m")),
        (BaseModel("m"), BaseModel("m", config=CONFIG), BaseModel("m", config=CONFIG)),
        (
            BaseModel("m", config=CONFIG),
            BaseModel("m", config=CONFIG | {"transformers_version": "5"}),
            BaseModel("m", config=CONFIG),
        ),
        (BaseModel("m", chat_template="a"), BaseModel("m"), BaseModel("m", chat_template="a")),
        (
            BaseModel("m", chat_template="a"),
            BaseModel("m", chat_template=""),
            BaseModel("m", chat_template=""),
        ),
    ],
)
def test_what_is_told_completes_what_is_known(known, told, merged):
    assert merge_base(known, told) == merged


def test_another_models_config_is_refused():
    with pytest.raises(ConflictError, match="hidden_size 64, but this engine's has 128"):
        merge_base(BaseModel("m", config=CONFIG), BaseModel("m", config=CONFIG | {"hidden_size": 128}))
