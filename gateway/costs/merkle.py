"""Merkle trees over usage records and over statements: hashing only, no I/O.

The tree is that of RFC 6962, section 2.1: SHA-256; a leaf is prefixed with 0x00 and a node with 0x01, so that
a node cannot pass for a leaf; n leaves split at the largest power of two below n; the empty tree is the hash
of the empty string. A period's header is prefixed with 0x02, so that it can pass for neither.

Hashed content is canonical JSON: UTF-8, sorted keys, no spaces, integers only, minimal escaping:
`json.dumps(x, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()` in Python. A record's leaf
covers the object that /finance/v1/periods/{month}/records returns to a tenant's key, with exactly its fields:
end user, tag and cost centre only where they are not null, service tier and task only where they are not
empty.

What a customer may not see (on which engine, with how many GPUs) is not part of a leaf, so that a proof needs
neither to reveal nor to hide it. It has a digest of its own in the tenant's full statement, which the
period's header covers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from gateway.metering.records import Labels, UsageRecord

VERSION = 2
"""The version of the leaves and the header."""
STORED_FIELDS = tuple(name for name in UsageRecord._fields if name not in {"seq", "seen"})
"""All that the ledger stores of a record except its time of arrival."""
WITHHELD_FIELDS = ("engine", "gpu_count")
"""Not for customers: they say how the fleet is built."""
RECORD_FIELDS = tuple(sorted(name for name in STORED_FIELDS if name not in WITHHELD_FIELDS))
"""The fields that a record's leaf covers, in the order of canonical JSON."""

_OPTIONAL = {**dict.fromkeys(Labels._fields, (None,)), "service_tier": (None, ""), "task": (None, "")}
"""Fields that a record has only if they say something, with the values that do not."""
Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class MerkleStep:
    """One level up the tree: the sibling's hash, and its side."""

    side: Side
    hash: bytes


def canonical(value: Any) -> bytes:
    """Raises TypeError for values without a canonical form, such as floats."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def present(record: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """These fields of a record, without optional ones that say nothing. Raises KeyError if another is
    missing."""
    return {
        name: record[name]
        for name in names
        if name not in _OPTIONAL or record.get(name) not in _OPTIONAL[name]
    }


def without_absent(record: dict[str, Any]) -> dict[str, Any]:
    """`present` for a record that has exactly these fields, in place: it is done millions of times."""
    for name, silent in _OPTIONAL.items():
        if record[name] in silent:
            del record[name]
    return record


def ordered_leaf(content: Mapping[str, Any]) -> bytes:
    """`record_leaf` of what a record's leaf covers, in the order of RECORD_FIELDS."""
    return hashlib.sha256(b"\x00" + orjson.dumps(content)).digest()


def record_leaf(record: Mapping[str, Any]) -> bytes:
    """The leaf's hash. Raises KeyError if a field is missing; ignores other keys."""
    return leaf_hash(canonical(present(record, RECORD_FIELDS)))


def withheld_line(record_id: str, *withheld: Any) -> bytes:
    """What the digest of a tenant's withheld fields covers of a record: WITHHELD_FIELDS."""
    return orjson.dumps((record_id, *withheld), option=orjson.OPT_APPEND_NEWLINE)


def leaf_hash(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def header_hash(header: Mapping[str, Any]) -> bytes:
    """The period's root."""
    return hashlib.sha256(b"\x02" + canonical(header)).digest()


def digest(value: Any) -> str:
    """SHA-256 of any other document, in hexadecimal."""
    return hashlib.sha256(canonical(value)).hexdigest()


class MerkleTree:
    """Computes a root in one pass, holding one hash per bit of the count: 26 for 50 million leaves.

    Mutable: grows by `add`."""

    def __init__(self) -> None:
        self.count = 0
        self._peaks: list[bytes] = []
        """Roots of full subtrees, largest and leftmost first; their sizes are the bits of `count`."""

    def __repr__(self) -> str:
        return f"<MerkleTree of {self.count}>"

    def add(self, leaf: bytes) -> None:
        """`leaf`: the leaf's hash."""
        merges = self.count
        while merges & 1:  # like the carry of a binary counter
            leaf = hashlib.sha256(b"\x01" + self._peaks.pop() + leaf).digest()  # `node_hash`, inlined
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
    """`leaves`: their hashes."""
    tree = MerkleTree()
    for leaf in leaves:
        tree.add(leaf)
    return tree.root()


def path(leaves: Sequence[bytes], index: int) -> tuple[MerkleStep, ...]:
    """The audit path (RFC 6962, section 2.1.1) of one leaf, from the leaf upwards. It has sides instead of
    the leaf's index and the tree's size, which would reveal the number of tenants. Raises IndexError."""
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
    """The root computed from a leaf's hash and its path."""
    for step in steps:
        leaf = node_hash(step.hash, leaf) if step.side == "left" else node_hash(leaf, step.hash)
    return leaf
