"""Adapters and their versions: the catalog, registration, canaries, artifacts, serving status."""
