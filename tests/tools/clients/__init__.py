"""The clients of docs/clients, as their users install them, for the tests that run its examples."""
