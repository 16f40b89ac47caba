"""The installation itself: its settings, gateways, registry, audit log, backups and doctor."""
