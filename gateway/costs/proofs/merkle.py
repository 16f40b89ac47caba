"""Merkle trees over usage records and over statements: hashing only, no I/O.

The tree is RFC 6962's (section 2.1): SHA-256; a leaf is hashed with a 0x00 before it, a node with a 0x01, so
that no node can pass for a leaf; n leaves split at the largest power of two below n; the empty tree is the
hash of nothing. A period's header is hashed with a 0x02, so that it is neither.

What is hashed is canonical JSON: UTF-8, keys sorted, no spaces, integers, nothing escaped that need not be:
`json.dumps(x, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()` in Python. A record's leaf
is that of the object which /finance/v1/periods/{month}/records shows, all its fields and no others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import orjson

from gateway.metering.records import UsageRecord

RECORD_FIELDS = tuple(f.name for f in fields(UsageRecord) if f.name not in {"seq", "seen"})
"""What a record's leaf binds: all that the ledger keeps of it but when it came."""

_SORTED = tuple(sorted(RECORD_FIELDS))
Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class MerkleStep:
    """One level up: the neighbour's hash, and on which side of ours it stands."""

    side: Side
    hash: bytes


def canonical(value: Any) -> bytes:
    """Raises TypeError for what has no canonical form: floats among others are never given."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def record_leaf(record: Mapping[str, Any]) -> bytes:
    """The leaf's hash. Raises KeyError if a field is missing; what is not of the record is left out."""
    return leaf_hash(canonical({name: record[name] for name in _SORTED}))


def leaf_hash(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def header_hash(header: Mapping[str, Any]) -> bytes:
    """A period's root, from its header."""
    return hashlib.sha256(b"\x02" + canonical(header)).digest()


def digest(value: Any) -> str:
    """Of any other document, in hexadecimal."""
    return hashlib.sha256(canonical(value)).hexdigest()


class MerkleTree:
    """A root in one pass: holds a hash for each bit of the count, so 26 of them for 50 million leaves.

    Mutable: grows by `add`."""

    def __init__(self) -> None:
        self.count = 0
        self._peaks: list[bytes] = []
        """Roots of full subtrees, the largest (and leftmost) first; their sizes are the bits of `count`."""

    def __repr__(self) -> str:
        return f"<MerkleTree of {self.count}>"

    def add(self, leaf: bytes) -> None:
        """`leaf` is a leaf's hash."""
        merges = self.count
        while merges & 1:  # like the carry of a binary counter
            leaf = node_hash(self._peaks.pop(), leaf)
            merges >>= 1
        self._peaks.append(leaf)
        self.count += 1

    def root(self) -> bytes:
        if not self._peaks:
            return hashlib.sha256().digest()
        *rest, root = self._peaks
        for peak in reversed(rest):
            root = node_hash(peak, root)
        return root


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Of leaves' hashes."""
    tree = MerkleTree()
    for leaf in leaves:
        tree.add(leaf)
    return tree.root()


def path(leaves: Sequence[bytes], index: int) -> tuple[MerkleStep, ...]:
    """The audit path (RFC 6962, 2.1.1) of one leaf, from the leaf upwards. It names sides, not the leaf's
    number and the tree's size, which would tell a tenant how many others there are. Raises IndexError."""
    if not 0 <= index < len(leaves):
        raise IndexError(index)
    if len(leaves) == 1:
        return ()
    half = 1 << (len(leaves) - 1).bit_length() - 1
    left, right = leaves[:half], leaves[half:]
    if index < half:
        return (*path(left, index), MerkleStep("right", root_of(right)))
    return (*path(right, index - half), MerkleStep("left", root_of(left)))


def climb(leaf: bytes, steps: Sequence[MerkleStep]) -> bytes:
    """The root that a leaf's hash and its path lead to."""
    for step in steps:
        leaf = node_hash(step.hash, leaf) if step.side == "left" else node_hash(leaf, step.hash)
    return leaf
