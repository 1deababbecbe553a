-- reserve: holds units for a batch of orders, or says why not.
--
-- Guarantee: each order is decided alone and sees those before it in the batch; all its lines are
-- held or none. A hold id that is there already takes nothing. Nothing is written unless the call's
-- epoch is the newest and open. Advisory: PostgreSQL decides again what is let through, and every
-- refusal is looked up by key before it is believed.
-- The windows are judged by now_ms (PostgreSQL's clock); this server's clock says only when the
-- sweep is to ask about a hold.
--
-- KEYS: meta holds due (gate buyers)*
-- ARGV: epoch now_ms due_after_ms skus (sku)* holds (hold_id buyer lines (sku_index quantity)*)*
-- Reply: epoch (outcome)*
-- Outcomes: OK KNOWN OTHER NOT_OPEN OVER LIMIT SOLD_OUT NO_GATE DAMAGED
-- Refusals: MALFORMED

local now, wait = digits(ARGV[2]), digits(ARGV[3])
if not now then return malformed('now_ms') end
if not wait then return malformed('due_after_ms') end
local at, what = parse_skus(4, false)
if not at then return malformed(what) end
local orders, ids = parse_orders(at)
if not orders then return malformed(ids) end

local epoch, fault = read_meta(true)
if fault then return answer_all(epoch, fault, #orders) end
if #orders == 0 then return { epoch } end
local stored = read_holds(ids)
if not stored then return answer_all(epoch, 'DAMAGED', #orders) end
read_gates()

-- The first rule that an order breaks; nil when it breaks none. Each rule for all lines before the
-- next rule.
local function refusal(order)
  local lines = #order.at
  local early, over, limit, short
  for n = 1, lines do
    local gate = gates[order.at[n]]
    if gate.fault then return gate.fault end
    if now < gate.opens then early = true end
    if now >= gate.closes then over = true end
    if gate.limited then
      local units = buyer_units(order.at[n], order.buyer)
      if not units then return 'DAMAGED' end
      if units + order.units[n] > gate.per_customer then limit = true end
    end
    if gate.limit - gate.held < order.units[n] then short = true end
  end
  if early then return 'NOT_OPEN' end
  if over then return 'OVER' end
  if limit then return 'LIMIT' end
  if short then return 'SOLD_OUT' end
end

local reply, placed, asked, here = { epoch }, {}, {}, {}
for n = 1, #orders do
  local order = orders[n]
  local text = here[order.id] or stored[n]
  local word
  if text then
    if same_hold(text, order) then
      word = 'KNOWN'
    elseif parse_hold(text) then
      word = 'OTHER'
    else
      word = 'DAMAGED'
    end
  else
    word = refusal(order)
    if not word then
      word = 'OK'
      text = place(order)
      here[order.id] = text
      placed[#placed + 1] = order.id
      placed[#placed + 1] = text
    end
  end
  if word == 'OK' or word == 'KNOWN' then asked[#asked + 1] = order.id end
  reply[n + 1] = word
end

if #asked > 0 then
  local due, score = {}, due_at(wait)
  for n = 1, #asked do
    due[2 * n - 1], due[2 * n] = score, asked[n]
  end
  if #placed > 0 then redis.call('HSET', KEYS[2], unpack(placed)) end
  -- GT: a repeat may only put the question off, so that no accept that it starts is overtaken.
  redis.call('ZADD', KEYS[3], 'GT', unpack(due))
  write_gates()
  write_buyers()
end
return reply
