"""What many adapters, tenants and registry changes cost one worker."""
