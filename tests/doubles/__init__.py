"""Test doubles of Florin's own parts."""
