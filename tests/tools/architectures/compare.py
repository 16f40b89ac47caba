"""Prints what transformers and vLLM build of other configs than the table was made from, to compare it with.

Runs in the engines' environment: `python -m tests.tools.architectures.compare` reads the table.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[3] / "adapters" / "checks" / "architectures.json"
_FACTORS = {"intermediate": 3, "hidden_size": 2, "head_dim": 2, "vocab": 2}


def main(names: list[str]) -> None:
    from tests.tools.architectures import engine_models
    from tests.tools.architectures.layered import LAYERED, Layered

    with contextlib.redirect_stdout(sys.stderr):
        engine_models.prepare()
        table = json.loads(TABLE.read_text())["architectures"]
        built = {
            name: [_built(name, row, variant) for variant in LAYERED.get(name, Layered({})).configs()]
            for name, row in table.items()
            if not names or name in names
        }
    json.dump(built, sys.stdout)


def _built(name: str, row: dict[str, Any], variant: dict[str, Any]) -> dict[str, Any]:
    """A config.json, the sizes of transformers' linear layers, and those of the names that vLLM adapts."""
    from tests.tools.architectures import engine_models, library_models

    cls = library_models.class_of(name)
    usual = library_models.configured(name, cls, head_dim=_heeds(row))
    values = {
        field: size * factor
        for field in row["fields"]
        for part, factor in _FACTORS.items()
        if part in field.rpartition(".")[2] and isinstance(size := _size(usual.plain, field), int)
    }
    problem = ""
    for changed in (values, {k: v for k, v in values.items() if "head_dim" not in k and "hidden" not in k}):
        try:
            config = library_models.configured(name, cls, changed, head_dim=_heeds(row), variant=variant)
            library = library_models.build(cls, config.plain)
            config.plain.architectures = [name]
            model, _ = engine_models.build(config.plain)
        except Exception as error:  # noqa: BLE001  # sizes that do not go together: fewer of them change
            problem = engine_models.in_short(error)
            continue
        adaptable = engine_models.adaptable(model)
        return {
            "config": library_models.varied(json.loads(config.plain.to_json_string(use_diff=True)), variant),
            "library": {path: list(map(int, sizes)) for path, sizes in library.linear.items()},
            "engine": {path: list(sizes) for path, sizes in adaptable.linear.items()},
            "experts": {
                path: [size.number, size.hidden, size.inner] for path, size in adaptable.experts.items()
            },
            "embeddings": {path: list(sizes) for path, sizes in adaptable.embeddings.items()},
        }
    return {"problem": problem}


def _size(config: Any, field: str) -> Any:
    from tests.tools.architectures import library_models

    with contextlib.suppress(TypeError):  # a part that this config lacks
        return library_models.value_of(config, field)


def _heeds(row: dict[str, Any]) -> bool:
    return any(field.endswith("head_dim") for field in row["fields"])


if __name__ == "__main__":
    main(sys.argv[1:])
