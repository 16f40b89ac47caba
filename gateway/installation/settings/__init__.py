"""The settings that a gateway works with."""
