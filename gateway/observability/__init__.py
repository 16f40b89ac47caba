"""Logs, metrics, conditions, and the context of a request that they quote."""
