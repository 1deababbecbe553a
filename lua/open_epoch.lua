-- open_epoch: lets a rebuilt epoch answer.
--
-- Guarantee: does nothing unless the epoch is still the newest one.
--
-- KEYS: meta
-- ARGV: epoch
-- Reply: epoch (outcome)*
-- Outcomes: OPENED SUPERSEDED DAMAGED
-- Refusals: MALFORMED

local epoch = ARGV[1] or ''
if #KEYS ~= 1 or not string.find(KEYS[1], ':meta$') then return malformed('keys') end
if #ARGV ~= 1 then return malformed('arguments') end
if #epoch > 36 or not string.find(epoch, '^[0-9a-z][0-9a-z-]*$') then return malformed('epoch') end

local newest = redis.pcall('HGET', KEYS[1], 'epoch')
if type(newest) == 'table' then return { '', 'DAMAGED' } end
if newest ~= epoch then return { newest or '', 'SUPERSEDED' } end
redis.call('HSET', KEYS[1], 'open', '1')
return { epoch, 'OPENED' }
