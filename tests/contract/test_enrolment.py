"""A token's exchange, as a commit: whatever the store, it happens once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from adapters.errors import ConflictError
from adapters.store.protocol.registry import AuditNote, Change
from gateway.tenants.directory import Key, Role, dump, load, mint


def exchange(token: Key, earlier: Key, by: int) -> tuple[list[Change], AuditNote]:
    new = replace(earlier, id=f"new-{by}", digest=f"digest-{by}")
    changes = [
        Change("key", old.id, dump(replace(old, revoked=9)), expect=dump(old)) for old in (token, earlier)
    ]
    return [*changes, Change("key", new.id, dump(new), expect=None)], AuditNote(
        "t", "token.use", "gpu1", str(by)
    )


async def test_of_concurrent_exchanges_of_one_token_one_happens_whole_and_the_others_not_at_all(installation):
    token, _ = mint("", Role.ENROLMENT, 1, engine="gpu1", expires=2)
    earlier, _ = mint("", Role.ENGINE, 1, engine="gpu1")
    await installation.store.commit([Change("key", k.id, dump(k)) for k in (token, earlier)])
    outcomes = await asyncio.gather(
        *(
            store.commit(changes, audit=note)
            for store, (changes, note) in (
                (installation.open(), exchange(token, earlier, n)) for n in range(8)
            )
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(o, ConflictError) for o in outcomes) == 7
    won = next(n for n, o in enumerate(outcomes) if isinstance(o, int))
    keys = [load(Key, text) for text in (await installation.store.snapshot()).documents["key"].values()]
    assert {k.id for k in keys if k.revoked is None} == {f"new-{won}"}
    assert len(keys) == 3
    assert [e.note.version for e in await installation.store.audit()] == [str(won)]
