-- keep: makes the gate hold what PostgreSQL says is held, and tells it the limits.
--
-- Guarantee: after KEPT, ADDED or REPLACED the hold is there with these lines, counted once, and is
-- asked about again next_check_ms from now. Repeating the call changes nothing else. A register
-- is taken only when its version is higher. Works in the newest epoch, open or still being built;
-- never refused for want of units: PostgreSQL has decided.
--
-- KEYS: meta holds due (gate buyers)*
-- ARGV: epoch next_check_ms skus (sku version limit opens_at closes_at per_customer)* holds (hold_id buyer lines (sku_index quantity)*)*
-- Reply: epoch (register)* (outcome)*
-- Registers: SET OLD NONE NO_GATE DAMAGED
-- Outcomes: KEPT ADDED REPLACED MISMATCH NO_GATE DAMAGED
-- Refusals: MALFORMED

local wait = digits(ARGV[2])
if not wait then return malformed('next_check_ms') end
local at, what = parse_skus(3, true)
if not at then return malformed(what) end
local orders, ids = parse_orders(at)
if not orders then return malformed(ids) end

local epoch, fault = read_meta(false)
if fault then return answer_all(epoch, fault, #names + #orders) end
local stored = {}
if #orders > 0 then
  stored = read_holds(ids)
  if not stored then return answer_all(epoch, 'DAMAGED', #names + #orders) end
end
read_gates()
local reply = { epoch }
apply_registers(reply)

local function cannot_place(order)
  for n = 1, #order.at do
    local gate = gates[order.at[n]]
    if gate.fault then return gate.fault end
    if gate.limited and not buyer_units(order.at[n], order.buyer) then return 'DAMAGED' end
  end
end

local placed, due, score, here = {}, {}, nil, {}
for n = 1, #orders do
  local order = orders[n]
  local text = here[order.id] or stored[n]
  local word
  if text and same_hold(text, order) then
    word = 'KEPT'
  else
    local before = text and parse_hold(text)
    if text and not before then
      word = 'DAMAGED'
    else
      word = (before and cannot_lift(before, true)) or cannot_place(order)
    end
    if not word then
      word = before and 'REPLACED' or 'ADDED'
      if before then lift(before, true) end
      text = place(order)
      here[order.id] = text
      placed[#placed + 1] = order.id
      placed[#placed + 1] = text
    end
  end
  if word == 'KEPT' or word == 'ADDED' or word == 'REPLACED' then
    score = score or due_at(wait)
    due[#due + 1] = score
    due[#due + 1] = order.id
  end
  reply[#reply + 1] = word
end

if #placed > 0 then redis.call('HSET', KEYS[2], unpack(placed)) end
if #due > 0 then redis.call('ZADD', KEYS[3], unpack(due)) end
write_gates()
write_buyers()
return reply
