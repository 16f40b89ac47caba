"""Certificates, secrets in files, and the permissions of the state directory."""
