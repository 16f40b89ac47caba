"""On the PYTHONPATH of the demo's child processes: Python runs `sitecustomize` from here in each of them."""
