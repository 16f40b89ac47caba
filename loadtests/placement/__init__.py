"""Scheduling policies on two real engines, compared in pairs."""
