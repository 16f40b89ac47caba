"""Backup and restore of a whole installation: registry, adapter files and ledger, in one file.

A zip archive. Its last member is the manifest, so an archive that was cut off has none:

    registry/contents.json              `RegistryContents`
    artifacts/<digest hex>/<file>       the files of every version in the registry
    ledger/<table>.jsonl                rows, see `gateway.metering.ledger.dump`
    manifest.json                       `Manifest`: versions, checksums, numbers

They are read in this order. Files of versions are immutable and outlive their registration by hours, so the
archive holds those of every version that its registry knows. The ledger is read last, in one transaction: it
holds all usage and audit entries that had left Redis when the registry was read.

The archive holds key digests and the installation's secrets, so only its owner can read it.
"""
