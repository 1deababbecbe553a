-- correct_buyers: sets the units of buyers of one SKU to what PostgreSQL says.
--
-- Guarantee: a buyer's units are changed only while they are what the caller has seen, so a change
-- in between wins and is looked at again. The only way to tell a rebuilt gate of units that are
-- sold: holds can't say it.
--
-- KEYS: meta holds due (gate buyers)*
-- ARGV: epoch skus (sku)* buyers (buyer seen units)*
-- Reply: epoch (outcome)*
-- Outcomes: SET CHANGED NO_GATE DAMAGED
-- Refusals: MALFORMED

local at, what = parse_skus(2, false)
if not at then return malformed(what) end
if #names ~= 1 then return malformed('skus') end
local count = digits(ARGV[at])
if not count or count > 128 or #ARGV ~= at + 3 * count then return malformed('buyers') end
for n = 0, count - 1 do
  if not valid_buyer(ARGV[at + 3 * n + 1]) then return malformed('buyer') end
  if not digits(ARGV[at + 3 * n + 2]) then return malformed('seen') end
  if not digits(ARGV[at + 3 * n + 3]) then return malformed('units') end
end

local epoch, fault = read_meta(false)
if fault then return answer_all(epoch, fault, count) end
local reply = { epoch }
for n = 0, count - 1 do
  local buyer, seen = ARGV[at + 3 * n + 1], digits(ARGV[at + 3 * n + 2])
  local units = buyer_units(1, buyer)
  local word = 'SET'
  if not units then
    word = 'DAMAGED'
  elseif units ~= seen then
    word = 'CHANGED'
  else
    add_buyer_units(1, buyer, digits(ARGV[at + 3 * n + 3]) - units)
  end
  reply[n + 2] = word
end
write_buyers()
return reply
