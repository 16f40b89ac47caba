"""Adapters and their versions: catalog, registration, canaries, artifacts, serving status."""
