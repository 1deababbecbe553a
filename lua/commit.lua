-- commit: ends holds whose orders are confirmed.
--
-- Guarantee: a hold is removed at most once, and only then its units leave `held`; its buyer keeps
-- them. The stored lines count, not the caller's: when one of their SKUs is not among KEYS the
-- answer is MISMATCH and the hold stays. A register is taken only when its version is higher
-- (PostgreSQL's `sold` has lowered the limit). Begins with a removal, so it runs when memory is
-- full. Works in the newest epoch, open or still being built.
--
-- KEYS: meta holds due (gate)*
-- ARGV: epoch skus (sku version limit opens_at closes_at per_customer)* holds (hold_id)*
-- Reply: epoch (register)* (outcome)*
-- Registers: SET OLD NONE NO_GATE DAMAGED
-- Outcomes: DONE ABSENT MISMATCH NO_GATE DAMAGED
-- Refusals: MALFORMED

stride = 1
return settle(false)
