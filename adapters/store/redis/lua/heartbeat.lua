-- heartbeat.lua: record the heartbeat of an engine's agent, or of a gateway. After prelude.lua.
--
-- KEYS[1]  the feed (unused: nothing here is an event)
-- KEYS[2]  the heartbeats: hash name -> '<expiry in ms> <the report>'
-- ARGV[2]  name     ARGV[3]  ttl in ms     ARGV[4]  the report
--
-- Returns nothing.
--
-- A script only so that the server's clock is used.

redis.call('HSET', KEYS[2], ARGV[2], integer(now + tonumber(ARGV[3])) .. ' ' .. ARGV[4])
