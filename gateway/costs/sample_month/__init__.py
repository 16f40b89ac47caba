"""A month of made-up usage, for trying reports."""
