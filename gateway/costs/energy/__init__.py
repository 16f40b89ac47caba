"""Energy and emissions, from stated power."""
