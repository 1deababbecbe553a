-- begin_epoch: starts a new life of a shard's keys, closed until it is opened.
--
-- Guarantee: does nothing unless the newest epoch is still the one that the caller saw ('-' when it
-- saw none), so that a rebuild that was overtaken can't close what another has opened.
--
-- KEYS: meta
-- ARGV: epoch replaces
-- Reply: epoch (outcome)*
-- Outcomes: BEGUN SUPERSEDED DAMAGED
-- Refusals: MALFORMED

local epoch, replaces = ARGV[1] or '', ARGV[2] or ''
if #KEYS ~= 1 or not string.find(KEYS[1], ':meta$') then return malformed('keys') end
if #ARGV ~= 2 then return malformed('arguments') end
if #epoch > 36 or not string.find(epoch, '^[0-9a-z][0-9a-z-]*$') then return malformed('epoch') end
if replaces ~= '-' and (#replaces > 36 or not string.find(replaces, '^[0-9a-z][0-9a-z-]*$')) then
  return malformed('replaces')
end
if epoch == replaces then return malformed('replaces') end

local newest = redis.pcall('HGET', KEYS[1], 'epoch')
if type(newest) == 'table' then return { '', 'DAMAGED' } end
if (newest or '-') ~= replaces then return { newest or '', 'SUPERSEDED' } end
redis.call('HSET', KEYS[1], 'epoch', epoch, 'open', '0')
return { epoch, 'BEGUN' }
