"""Prints the table as JSON, in the engines' environment: `python -m tests.tools.architectures.probe [NAME…]`."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

_UNTOLD = {
    "ColPaliForRetrieval": "its config holds the language model's sizes twice",
    "Glm4MoeLiteForCausalLM": "its attention's sizes do not follow from its config alone",
}
"""Models whose formulas do not hold for other configs than the default: `tests.tools.architectures.compare`."""


def main(names: list[str]) -> None:
    from tests.tools.architectures import engine_models

    with contextlib.redirect_stdout(sys.stderr):
        engine_models.prepare()
        table = _table(names)
    json.dump(table, sys.stdout)


def _table(names: list[str]) -> dict[str, Any]:
    import transformers
    import vllm

    from tests.tools.architectures import engine_models, library_models, rows

    known, broken = engine_models.capable(names)
    architectures: dict[str, Any] = {}
    unknown: dict[str, str] = {
        name: f"vLLM's class cannot be imported: {reason}" for name, reason in broken.items()
    }
    for name, capable in sorted(known.items()):
        if name in _UNTOLD:
            unknown[name] = _UNTOLD[name]
            continue
        if library_models.class_of(name) is None:
            unknown[name] = "transformers has no class of this name"
            continue
        try:
            architectures[name] = rows.row(name, capable.kind)
        except Exception as error:  # noqa: BLE001  # whatever a model does when it is built
            unknown[name] = engine_models.in_short(error)
    return {
        "vllm": vllm.__version__,
        "transformers": transformers.__version__,
        "model_types": _model_types(architectures),
        "architectures": architectures,
        "unknown": dict(sorted(unknown.items())),
    }


def _model_types(architectures: dict[str, Any]) -> dict[str, str]:
    """`model_type` → the text model that it stands for, for a config.json without `architectures`."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return {
        kind: name
        for kind, name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items())
        if name in architectures
    }


if __name__ == "__main__":
    main(sys.argv[1:])
