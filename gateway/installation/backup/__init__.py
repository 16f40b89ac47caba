"""Backup and restore of a whole installation."""
