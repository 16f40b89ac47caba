"""What Redis says against what engines report, and how differences are repaired."""
