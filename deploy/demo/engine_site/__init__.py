"""On the engines' PYTHONPATH only: Python runs `sitecustomize` from here in every process of an engine."""
