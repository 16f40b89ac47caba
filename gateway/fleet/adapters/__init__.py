"""Adapters and their versions, canaries, uploads and quotas, as the API and the commands offer them."""
