"""The store on Redis or Valkey. Atomic operations are Lua scripts in `lua/`; the rest are single commands.

All keys carry the installation's hash tag, so that they share one slot of a Redis Cluster:

    {florin}:doc:<kind>         hash    id → JSON
    {florin}:feed               stream  <seq>-0 → kind, id, data (absent: deleted), mark
    {florin}:placement          hash    engine/version → JSON of model.Placement
    {florin}:until              hash    engine/version → ms at which `loading` or `leaving` expires
    {florin}:where              hash    version → engines that it is assigned to
    {florin}:recency:<engine>   zset    version → ms of last use; every member has a slot
    {florin}:cached:<engine>    zset    version → ms of last use; no member has a slot
    {florin}:leases:<engine>    hash    version|worker → ms at which the lease expires,
                                        version|worker|n → its requests in flight
    {florin}:loads              hash    worker → expiry, and its requests on every engine
    {florin}:role:<name>        string  deadline, fence token and holder
    {florin}:last_use           zset    key's id → Unix microseconds of its last use
    {florin}:errors:<tenant>    list    the tenant's last errors (JSON), newest first
    {florin}:canary:<comparison>  hash  count of a slice, version and figure → how many
    {florin}:audit              stream  server's id → note (JSON of AuditNote)
    {florin}:heartbeats         hash    engine → expiry, and the agent's report
    {florin}:gateways           hash    gateway → expiry, and its announcement
    {florin}:limit:<subject>    string  what is used of a tenant's or key's limits, see lua/limits.lua
    {florin}:once:<name>        string  claims of what is done once, such as a budget's warning
    {florin}:secret:<name>      string
    {florin}:session:<digest>   string  JSON: a session of the console, or a link that begins one
    {florin}:format             string  number of the registry's format, see registry_format
    {florin}:epoch              string  JSON: its number, and the installations that this one replaced

Times come from the server's clock, so the workers' clocks do not matter.
"""

from __future__ import annotations

from adapters.store.redis.activity import RedisActivity
from adapters.store.redis.canaries import RedisCanaries
from adapters.store.redis.connection import without_password
from adapters.store.redis.coordination import RedisCoordination
from adapters.store.redis.limits import RedisLimits
from adapters.store.redis.placement import RedisPlacement
from adapters.store.redis.registry import RedisRegistry
from adapters.store.redis.sessions import RedisSessions


class RedisStore(
    RedisRegistry,
    RedisPlacement,
    RedisCoordination,
    RedisLimits,
    RedisActivity,
    RedisCanaries,
    RedisSessions,
):
    """`adapters.store.protocol.Store` on one Redis or Valkey server (or the primary behind a service name).

    Invariants: a call is never retried, because a lost reply does not tell whether the command ran; every
    error of the server or the network becomes StoreUnavailableError; every script but that of the limits
    checks that the registry continues the position passed to `trust`, which the `Follower` keeps up to date.
    Any task on the store's event loop may call any method. Mutable state: the trusted position and the
    connections.

    `url`: redis://, rediss:// or unix://, or several servers (see `discovery`). Connects on the first call.
    `timeout`: seconds for any call except a snapshot, including connecting. `clock`: returns ms, instead of
    the server's clock; for tests.
    """

    def __repr__(self) -> str:
        return f"<RedisStore {self._tag} at {without_password(self._url)}>"

    async def close(self) -> None:
        await self._redis.aclose()
