"""On the PYTHONPATH of what the demo starts: Python runs `sitecustomize` from here in every such process."""
