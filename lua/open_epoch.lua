-- open_epoch: lets a rebuilt epoch answer.
--
-- Guarantee: does nothing unless the epoch is still the newest one.
--
-- KEYS: meta
-- ARGV: epoch
-- Reply: epoch (outcome)*
-- Outcomes: OPENED SUPERSEDED
-- Refusals: MALFORMED

if #KEYS ~= 1 or not string.find(KEYS[1], ':meta$') then return malformed('keys') end
if #ARGV ~= 1 then return malformed('arguments') end
if not valid_epoch(ARGV[1]) then return malformed('epoch') end

local epoch, fault = read_meta(false)
if fault then return { epoch, 'SUPERSEDED' } end
redis.call('HSET', KEYS[1], 'open', '1')
return { epoch, 'OPENED' }
