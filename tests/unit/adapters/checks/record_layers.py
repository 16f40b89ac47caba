"""Records anew which layers of the models in layers.json have which linear modules: `python record_layers.py OUT`,
in the engines' environment. transformers builds each model on the meta device from its `config`: the fields of its
config.json that tell sizes and layers. transformers 5.19 made what is kept."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
RECORDED = Path(__file__).with_name("layers.json")


def recorded(config: dict[str, Any]) -> dict[str, Any]:
    made = transformers.AutoConfig.for_model(**json.loads(json.dumps(config)))
    with torch.device("meta"):
        model = getattr(transformers, config["architectures"][0])(made)
    modules: dict[str, dict[str, list[int]]] = {}
    experts: dict[str, list[int]] = {}
    for path, module in model.named_modules():
        number = _NUMBER.search(path)
        if number is None or "vision" in path:
            continue
        pattern, layer = _NUMBER.sub("*", path), int(number[0])
        if isinstance(module, torch.nn.Linear):
            sizes = f"{module.in_features} {module.out_features}"
            modules.setdefault(pattern, {}).setdefault(sizes, []).append(layer)
        elif path.endswith((".experts", ".block_sparse_moe")):
            experts.setdefault(pattern.removesuffix(".experts") + ".experts", []).append(layer)
    return {"config": config, "modules": modules, "experts": experts}


if __name__ == "__main__":
    models = json.loads(RECORDED.read_text())
    lines = [f"{json.dumps(name)}: {json.dumps(recorded(model['config']))}" for name, model in models.items()]
    Path(sys.argv[1]).write_text("{\n" + ",\n".join(lines) + "\n}\n")
