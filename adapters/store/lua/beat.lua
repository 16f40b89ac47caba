-- beat.lua: an engine's agent lives. After prelude.lua.
--
-- KEYS[1]  the feed (unused: nothing here is an event)
-- KEYS[2]  the beats: hash engine -> '<ms at which it lapses> <what the agent says>'
-- ARGV[2]  engine     ARGV[3]  ttl in ms     ARGV[4]  what it says
--
-- Returns nothing.
--
-- A script only for the sake of the one clock.

redis.call('HSET', KEYS[2], ARGV[2], integer(now + tonumber(ARGV[3])) .. ' ' .. ARGV[4])
