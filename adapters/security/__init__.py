"""TLS certificates, secret files, and the permissions of the state directory."""
