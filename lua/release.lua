-- release: ends holds whose orders were canceled or expired, or never came to be.
--
-- Guarantee: a hold is removed at most once, and only then its units leave `held` and go back to
-- its buyer's allowance, as many as were counted. The stored lines count, not the caller's: when
-- one of their SKUs is not among KEYS the answer is MISMATCH and the hold stays. A register is
-- taken only when its version is higher. Begins with a removal, so it runs when memory is full.
-- Works in the newest epoch, open or still being built.
--
-- KEYS: meta holds due (gate buyers)*
-- ARGV: epoch skus (sku version limit opens_at closes_at per_customer)* holds (hold_id)*
-- Reply: epoch (register)* (outcome)*
-- Registers: SET OLD NONE NO_GATE DAMAGED
-- Outcomes: DONE ABSENT MISMATCH NO_GATE DAMAGED
-- Refusals: MALFORMED

return settle(true)
