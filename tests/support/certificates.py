"""Certificates for tests: authorities of their own, and files as operators have them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Files:
    cert: Path
    key: Path

    def put(self, issued: trustme.LeafCert) -> None:
        """Replaces both, each at once, as renewals do."""
        put(self.cert, b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        put(self.key, issued.private_key_pem.bytes())


@dataclass(frozen=True)
class Authority:
    """One CA, its certificate in `file`."""

    ca: trustme.CA
    file: Path

    @classmethod
    def at(cls, directory: Path, name: str = "ca") -> Authority:
        directory.mkdir(parents=True, exist_ok=True)
        made = cls(trustme.CA(), directory / f"{name}.pem")
        made.ca.cert_pem.write_to_path(made.file)
        return made

    def issue(self, name: str, *hosts: str, days: float = 30) -> Files:
        files = Files(self.file.with_name(f"{name}.pem"), self.file.with_name(f"{name}.key"))
        files.put(self.leaf(*hosts, days=days))
        return files

    def leaf(self, *hosts: str, days: float = 30) -> trustme.LeafCert:
        """Below 0 `days`: it expired so many days ago."""
        until = datetime.now(UTC) + timedelta(days=days)
        since = min(until, datetime.now(UTC)) - timedelta(days=1)
        names = hosts or ("127.0.0.1", "localhost")
        return self.ca.issue_cert(*names, not_before=since, not_after=until)


def put(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}")
    partial.touch(mode=0o600)
    partial.write_bytes(content)
    partial.chmod(0o600)
    partial.replace(path)
