-- common: what every script of the gate shares; put in front of each before it is loaded.
--
-- Nothing here writes but write_gates and write_buyers, which a script calls after its decisions.
-- Reads go through pcall, so that a key of a wrong type is an outcome and not an error half-way;
-- writes never do. A value is used as a number only when it is plain digits, at most 15 of them:
-- a double holds those exactly.
--
-- A gate is a hash: limit, version, held, opens_at, closes_at, per_customer ('-' where none).
-- A hold is a text: BUYER SKU=UNITS,SKU=UNITS BITS, where a bit says whether the line was counted
-- for its buyer, so that a release gives back what was taken and nothing else.

local names, index, gates, registers, buyers, numbers = {}, {}, {}, {}, {}, {}
local stride = 2

local function malformed(what)
  return redis.error_reply('MALFORMED ' .. what)
end

-- Remembered by text: most numbers of a batch are the same few.
local function digits(text)
  if not text then return nil end
  local number = numbers[text]
  if not number and #text <= 15 and (text == '0' or string.find(text, '^[1-9]%d*$')) then
    number = tonumber(text)
    numbers[text] = number
  end
  return number
end

local function whole(number)
  return string.format('%.0f', number)
end

local function gate_key(i)
  return KEYS[4 + (i - 1) * stride]
end

local function buyers_key(i)
  return KEYS[5 + (i - 1) * stride]
end

local function valid_epoch(text)
  return text and #text <= 36 and string.find(text, '^[0-9a-z][0-9a-z-]*$')
end

-- (version limit opens_at closes_at per_customer) from ARGV[at] on; false when there is none.
local function parse_register(at)
  if ARGV[at] == '-' then
    for i = at + 1, at + 4 do
      if ARGV[i] ~= '-' then return nil end
    end
    return false
  end
  for i = at, at + 4 do
    if not digits(ARGV[i]) and (i < at + 2 or ARGV[i] ~= '-') then return nil end
  end
  return { version = digits(ARGV[at]), limit = digits(ARGV[at + 1]), opens = ARGV[at + 2],
    closes = ARGV[at + 3], per_customer = ARGV[at + 4] }
end

-- Checks the epoch, all keys and the SKUs that begin at ARGV[at]; the place after them, or what is
-- wrong.
local function parse_skus(at, with_registers)
  local epoch = ARGV[1]
  local base = string.match(KEYS[1] or '', '^(.*:)meta$')
  if not valid_epoch(epoch) then return nil, 'epoch' end
  if not base then return nil, 'keys' end
  base = base .. epoch .. ':'
  local count = digits(ARGV[at])
  if not count then return nil, 'skus' end
  if #KEYS ~= 3 + count * stride or KEYS[2] ~= base .. 'holds' or KEYS[3] ~= base .. 'due' then
    return nil, 'keys'
  end
  at = at + 1
  for i = 1, count do
    local name = ARGV[at] or ''
    if #name > 32 or not string.find(name, '^[A-Z0-9_-]+$') or index[name] then
      return nil, 'sku'
    end
    if gate_key(i) ~= base .. 'gate:' .. name then return nil, 'keys' end
    if stride == 2 and buyers_key(i) ~= base .. 'buyers:' .. name then return nil, 'keys' end
    names[i], index[name] = name, i
    at = at + 1
    if with_registers then
      registers[i] = parse_register(at)
      if registers[i] == nil then return nil, 'register' end
      at = at + 5
    end
  end
  return at
end

local function valid_hold_id(text)
  return text and #text == 36 and string.find(text, '^[0-9a-f-]+$')
end

local function valid_buyer(text)
  return text and #text <= 97 and string.find(text, '^[a-z0-9-]+/[A-Za-z0-9_.:@+-]+$')
end

-- The orders that begin at ARGV[at], to its end: count (hold_id buyer lines (index quantity)*)*.
local function parse_orders(at)
  local orders, ids = {}, {}
  local count = digits(ARGV[at])
  if not count or count > 128 then return nil, 'holds' end
  at = at + 1
  for n = 1, count do
    local id, buyer, lines = ARGV[at], ARGV[at + 1], digits(ARGV[at + 2])
    if not valid_hold_id(id) then return nil, 'hold_id' end
    if not valid_buyer(buyer) then return nil, 'buyer' end
    if not lines or lines < 1 or lines > 1000 then return nil, 'lines' end
    at = at + 3
    local places, quantities, list, last = {}, {}, {}, 0
    for line = 1, lines do
      local i, units = digits(ARGV[at]), digits(ARGV[at + 1])
      if not i or i <= last or i > #names then return nil, 'sku_index' end
      if not units or units < 1 or units > 1000 then return nil, 'quantity' end
      places[line], quantities[line], last = i, units, i
      list[line] = names[i] .. '=' .. ARGV[at + 1]
      at = at + 2
    end
    orders[n] = { id = id, buyer = buyer, at = places, units = quantities,
      text = buyer .. ' ' .. table.concat(list, ',') .. ' ' }
    ids[n] = id
  end
  if at ~= #ARGV + 1 then return nil, 'arguments' end
  return orders, ids
end

-- The hold ids that begin at ARGV[at], to its end: count (hold_id)*.
local function parse_ids(at)
  local ids = {}
  local count = digits(ARGV[at])
  if not count or count < 1 or count > 128 then return nil, 'holds' end
  if #ARGV ~= at + count then return nil, 'arguments' end
  for n = 1, count do
    if not valid_hold_id(ARGV[at + n]) then return nil, 'hold_id' end
    ids[n] = ARGV[at + n]
  end
  return ids
end

-- A stored hold as buyer and lines; nil when it is not one.
local function parse_hold(text)
  local buyer, list, bits = string.match(text, '^(%S+) (%S+) ([01]+)$')
  if not valid_buyer(buyer) then return nil end
  local hold, last = { buyer = buyer }, nil
  for item in string.gmatch(list .. ',', '([^,]*),') do
    local sku, units = string.match(item, '^([A-Z0-9_-]+)=([1-9]%d*)$')
    if not sku or #units > 4 or sku == last then return nil end
    last = sku
    hold[#hold + 1] = { sku = sku, units = tonumber(units),
      counted = string.sub(bits, #hold + 1, #hold + 1) == '1' }
  end
  if #hold ~= #bits then return nil end
  return hold
end

-- Whether a stored hold says what the order says.
local function same_hold(text, order)
  local size = #order.text
  return #text == size + #order.at and string.sub(text, 1, size) == order.text
    and string.find(text, '^[01]+$', size + 1) ~= nil
end

-- The newest epoch ('' when there is none, or when the key is damaged: a rebuild begins anew) and
-- NO_GATE when this call must not go on.
local function read_meta(must_be_open)
  local meta = redis.pcall('HMGET', KEYS[1], 'epoch', 'open')
  if meta.err or not valid_epoch(meta[1]) then return '', 'NO_GATE' end
  local epoch = meta[1]
  if epoch ~= ARGV[1] or (must_be_open and meta[2] ~= '1') then return epoch, 'NO_GATE' end
  return epoch
end

-- The stored holds of the ids; nil when the holds or the due set are of a wrong type.
local function read_holds(ids)
  local holds = redis.pcall('HMGET', KEYS[2], unpack(ids))
  local due = redis.pcall('ZCARD', KEYS[3])
  if holds.err or type(due) == 'table' then return nil end
  return holds
end

-- gates[i]; its `fault` is NO_GATE or DAMAGED when it can't be used.
local function read_gates()
  for i = 1, #names do
    local v = redis.pcall('HMGET', gate_key(i),
      'limit', 'version', 'held', 'opens_at', 'closes_at', 'per_customer')
    if v.err then
      gates[i] = { fault = 'DAMAGED' }
    elseif not (v[1] or v[2] or v[3] or v[4] or v[5] or v[6]) then
      gates[i] = { fault = 'NO_GATE' }
    else
      local gate = { limit = digits(v[1]), version = digits(v[2]), held = digits(v[3]),
        opens = v[4] == '-' and 0 or digits(v[4]),
        closes = v[5] == '-' and math.huge or digits(v[5]),
        per_customer = v[6] == '-' and math.huge or digits(v[6]) }
      if not (gate.limit and gate.version and gate.held and gate.opens and gate.closes
          and gate.per_customer) then
        gate = { fault = 'DAMAGED' }
      end
      gate.limited = v[6] ~= '-'
      gates[i] = gate
    end
  end
end

-- Applies the registers to the gates that were read: the higher version wins. One word per SKU.
local function apply_registers(words)
  for i = 1, #names do
    local register, gate = registers[i], gates[i]
    local word = 'OLD'
    if not register then
      word = 'NONE'
    elseif gate.fault == 'DAMAGED' then
      word = 'DAMAGED'
    elseif gate.fault or register.version > gate.version then
      gates[i] = { register = register, held = gate.held or 0, changed = true,
        limited = register.per_customer ~= '-' }
      word = 'SET'
    end
    words[#words + 1] = word
  end
end

-- Units of a buyer at a SKU; false when the stored value is not a number.
local function buyer_units(i, buyer)
  local known = buyers[i]
  if not known then
    known = { units = {}, changed = {} }
    buyers[i] = known
  end
  if known.units[buyer] == nil then
    local units = redis.pcall('HGET', buyers_key(i), buyer)
    if type(units) == 'table' then
      known.units[buyer] = false
    else
      known.units[buyer] = units == false and 0 or digits(units) or false
    end
  end
  return known.units[buyer]
end

local function add_buyer_units(i, buyer, units)
  local known = buyers[i]
  known.units[buyer] = math.max(0, known.units[buyer] + units)
  known.changed[buyer] = true
end

-- Why a stored hold can't be lifted: MISMATCH, DAMAGED; nil when it can.
local function cannot_lift(hold, with_buyers)
  for n = 1, #hold do
    if not index[hold[n].sku] then return 'MISMATCH' end
  end
  for n = 1, #hold do
    local line = hold[n]
    local i = index[line.sku]
    if gates[i].fault or gates[i].held < line.units then return 'DAMAGED' end
    if with_buyers and line.counted and not buyer_units(i, hold.buyer) then return 'DAMAGED' end
  end
end

local function lift(hold, with_buyers)
  for n = 1, #hold do
    local line = hold[n]
    local i = index[line.sku]
    gates[i].held, gates[i].changed = gates[i].held - line.units, true
    if with_buyers and line.counted then add_buyer_units(i, hold.buyer, -line.units) end
  end
end

-- Takes an order's units and returns the text of its hold.
local function place(order)
  local bits = {}
  for n = 1, #order.at do
    local i, units = order.at[n], order.units[n]
    local gate = gates[i]
    gate.held, gate.changed = gate.held + units, true
    bits[n] = gate.limited and '1' or '0'
    if gate.limited then add_buyer_units(i, order.buyer, units) end
  end
  return order.text .. table.concat(bits)
end

-- Milliseconds of this server's clock, `wait` from now.
local function due_at(wait)
  local time = redis.call('TIME')
  return whole(tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + wait)
end

local function write_gates()
  for i = 1, #names do
    local gate = gates[i]
    local register = gate.register
    if register then
      redis.call('HSET', gate_key(i), 'limit', whole(register.limit),
        'version', whole(register.version), 'held', whole(gate.held), 'opens_at', register.opens,
        'closes_at', register.closes, 'per_customer', register.per_customer)
    elseif gate.changed then
      redis.call('HSET', gate_key(i), 'held', whole(gate.held))
    end
  end
end

local function write_buyers()
  for i, known in pairs(buyers) do
    local set, gone = {}, {}
    for buyer in pairs(known.changed) do
      if known.units[buyer] > 0 then
        set[#set + 1] = buyer
        set[#set + 1] = whole(known.units[buyer])
      else
        gone[#gone + 1] = buyer
      end
    end
    if #gone > 0 then redis.call('HDEL', buyers_key(i), unpack(gone)) end
    if #set > 0 then redis.call('HSET', buyers_key(i), unpack(set)) end
  end
end

-- The reply when nothing is decided: the same word for each SKU (where registers are answered) and
-- each hold.
local function answer_all(epoch, word, count)
  local reply = { epoch }
  for n = 1, count do
    reply[n + 1] = word
  end
  return reply
end

-- Ends holds: what commit and release share. `give_back` returns the units to their buyers.
local function settle(give_back)
  local at, what = parse_skus(2, true)
  if not at then return malformed(what) end
  local ids
  ids, what = parse_ids(at)
  if not ids then return malformed(what) end

  local epoch, fault = read_meta(false)
  if fault then return answer_all(epoch, fault, #names + #ids) end
  local stored = read_holds(ids)
  if not stored then return answer_all(epoch, 'DAMAGED', #names + #ids) end
  read_gates()
  local reply = { epoch }
  apply_registers(reply)

  local gone, lifted = {}, {}
  for n = 1, #ids do
    local id = ids[n]
    local word = 'ABSENT'
    if stored[n] and not lifted[id] then
      local hold = parse_hold(stored[n])
      word = hold and cannot_lift(hold, give_back) or not hold and 'DAMAGED' or 'DONE'
      if word == 'DONE' then
        lift(hold, give_back)
        lifted[id] = true
      end
    end
    if word == 'DONE' or word == 'ABSENT' then gone[#gone + 1] = id end
    reply[#reply + 1] = word
  end

  -- The first write is a removal, of nothing if need be: after one the server asks no more whether
  -- memory is full.
  if #gone == 0 then gone[1] = '-' end
  redis.call('HDEL', KEYS[2], unpack(gone))
  write_gates()
  if give_back then write_buyers() end
  redis.call('ZREM', KEYS[3], unpack(gone))
  return reply
end
