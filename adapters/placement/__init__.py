"""Which engine holds which version: the policy, loading and verification."""
