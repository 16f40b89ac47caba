"""Florin's resources in Kubernetes, and the controller that brings the registry to what they say."""
