"""A version's files, before it is registered: fetched or unpacked, checked, and stored as an artifact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adapters import sources
from adapters.checks.findings import Findings, shown
from adapters.checks.validate import AdapterFacts
from adapters.checks.weights import CHECKING
from adapters.errors import Finding
from adapters.model import Version
from adapters.registry import bounded_checks
from adapters.registry.artifacts import Artifact, ArtifactStore, digest_of
from adapters.registry.change_context import ChangeContext, FleetLimits
from adapters.sources import archive
from adapters.sources.options import FetchOptions
from adapters.sources.public_uri import public
from adapters.store.protocol.registry import Change


@dataclass(frozen=True, slots=True)
class Upload:
    """An archive on this host's disk. The caller deletes it."""

    path: Path
    name: str = ""
    """The uploader's name for it, for `Version.source`."""

    @property
    def source(self) -> str:
        return f"upload:{self.name}" if self.name else "upload"


def _any_facts(_: AdapterFacts) -> None:
    pass


def _any_version(_: ChangeContext, __: Version) -> Sequence[Change]:
    return ()


@dataclass(frozen=True, slots=True)
class RegistrationTerms:
    """What a registration may be, besides sound. The default limits nothing."""

    fetching: FetchOptions | None = None
    """How sources are read; None: as the registrar is configured."""
    by_digest: bool = True
    """Whether a digest may stand for files that are stored already. It must not where the files may be
    another tenant's: whoever learns a digest has not seen the files."""
    check_facts: Callable[[AdapterFacts], None] = _any_facts
    """Called before the files are stored. Raises AdaptersError."""
    admit: Callable[[ChangeContext, Version], Sequence[Change]] = _any_version
    """Called for a new version, in the plan of its commit. Returns changes to commit with it. Raises
    AdaptersError."""


NO_TERMS = RegistrationTerms()


@dataclass(frozen=True, slots=True)
class Ingest:
    """Fetches, checks and publishes a version's files. Blocking."""

    artifacts: ArtifactStore
    adapter: str
    source: str | Upload
    options: FetchOptions
    digest: str | None
    terms: RegistrationTerms
    assume_base: bool
    unverified_shapes: bool

    def run(self, fleet: FleetLimits) -> tuple[AdapterFacts, Artifact, str]:
        """Return the facts, the artifact and the source without credentials."""
        if self.digest is not None and self.terms.by_digest:
            with self.artifacts.files(self.digest) as kept:
                if kept is not None:
                    return self._check(kept, fleet), self.artifacts.artifact(self.digest, kept), self._public
        with self.artifacts.staging() as staged:
            public_source, warnings = self._fetch(staged)
            facts = self._check(staged, fleet)
            facts = replace(facts, warnings=(*facts.warnings, *warnings))
            self.options.progress("store", 0, None)
            return facts, self.artifacts.publish(staged), public_source

    def _check(self, directory: Path, fleet: FleetLimits) -> AdapterFacts:
        self.options.progress(CHECKING, 0, None)
        facts = bounded_checks.check(
            directory,
            fleet,
            max_bytes=self.options.max_bytes,
            assume_base=self.assume_base,
            unverified_shapes=self.unverified_shapes,
            adapter=self.adapter,
            progress=self.options.progress,
        )
        self.terms.check_facts(facts)
        return facts

    @property
    def _public(self) -> str:
        return self.source.source if isinstance(self.source, Upload) else public(self.source)

    def _fetch(self, staged: Path) -> tuple[str, tuple[Finding, ...]]:
        findings, options, where = Findings(), self.options, self._public
        if isinstance(self.source, Upload):
            archive.unpack(
                self.source.path,
                staged,
                max_bytes=options.max_bytes,
                findings=findings,
                progress=options.progress,
            )
        else:
            where = sources.fetch(self.source, staged, options=options, findings=findings)
        findings.refuse_if_any(self.adapter)
        if self.digest is None:
            return where, findings.warnings
        digest = f"sha256:{digest_of(staged)}"
        if digest != self.digest:
            findings.add(
                "digest_mismatch",
                "The files do not match the expected digest.",
                found=digest,
                expected=shown(self.digest),
            )
            findings.refuse_if_any(self.adapter)
        return where, findings.warnings
