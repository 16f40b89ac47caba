"""Makes plain LoRA of what engines cannot serve, merges adapters, and lowers their ranks. On local files;
numpy only.

`arrays` decodes and encodes weights, `weight_files` and `adapter_files` read them, `factors` and `changes`
hold the mathematics as pure functions, `convert`, `merge` and `compress` use them, and `output` writes the
result atomically.
"""
