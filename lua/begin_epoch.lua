-- begin_epoch: starts a new life of a shard's keys, closed until it is opened.
--
-- Guarantee: does nothing unless the newest epoch is still the one that the caller saw ('-' when it
-- saw none), so that a rebuild that was overtaken can't close what another has opened. A damaged
-- epoch key counts as none, and is replaced.
--
-- KEYS: meta
-- ARGV: epoch replaces
-- Reply: epoch (outcome)*
-- Outcomes: BEGUN SUPERSEDED
-- Refusals: MALFORMED

local epoch, replaces = ARGV[1], ARGV[2]
if #KEYS ~= 1 or not string.find(KEYS[1], ':meta$') then return malformed('keys') end
if #ARGV ~= 2 then return malformed('arguments') end
if not valid_epoch(epoch) or epoch == replaces then return malformed('epoch') end
if replaces ~= '-' and not valid_epoch(replaces) then return malformed('replaces') end

local newest = redis.pcall('HGET', KEYS[1], 'epoch')
local damaged = type(newest) == 'table'
if damaged or not valid_epoch(newest) then newest = nil end
if (newest or '-') ~= replaces then return { newest or '', 'SUPERSEDED' } end
if damaged then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], 'epoch', epoch, 'open', '0')
return { epoch, 'BEGUN' }
