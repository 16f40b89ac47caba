"""The gateways of the installation."""
