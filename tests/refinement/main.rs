//! The refinement: what the model proved is what the code does. Random sequences of the operations
//! of `tests/model` (`model::protocol`: the functions that the checker walks over) run on the
//! model's state and on the real system; after every call both must have given the same answers and
//! stand in the same state.
//!
//! | the model | the real call ([`scripts`], [`postgres`]) |
//! |---|---|
//! | `GateOp::Reserve` | `Gate::reserve`, `lua/reserve.lua` |
//! | `GateOp::Keep`, `Commit`, `Release` | `Gate::keep`, `commit`, `release` and their scripts; in [`postgres`] by the stock service's `sync_orders`, `sweep_holds`, `rebuild_if_lost` |
//! | `GateOp::Put` | registers in those calls, `Gate::put_registers` |
//! | `GateOp::CorrectBuyer` | `Gate::correct_buyers`, `rebuild_gate::put_buyers` |
//! | `GateOp::Begin`, `Open` | `Gate::begin_epoch`, `open_epoch` |
//! | `GateOp::Wipe`, `LoseRow` | the keys are deleted |
//! | `Pg::accept` | `order::accept_batch::decide`, committed or rolled back |
//! | `Pg::settle` | the inbox, `SettleOrders::handle`, commit; `after_commit` half of the time |
//! | `Pg::cancel` | `store::orders::lock`, `transition` |
//! | `Pg::expire` | `ExpireOrders::expire_due_orders` |
//! | `Pg::begin_payment` | `store::payments::lock_waiting_orders`, `insert_pending` |
//! | `Pg::record_charge` | `store::payments::lock_for_results`, `update` |
//! | `Pg::adjust` | `store::adjustments::insert` |
//! | `Moment::next` | `orders.reserved_until` is moved into the past |
//!
//! | the model's state | the real projection |
//! |---|---|
//! | `Gate::epoch`, `rows`, `bought`, `holds` | `Gate::snapshot`: meta, gates, buyers, holds with their counted bits |
//! | `Pg::skus` | `stock`: on_hand, held, sold, version |
//! | `Pg::bought` | `buyer_units`, where there are any |
//! | `Pg::keys` | `idempotency`: hold id, first byte of the fingerprint, order |
//! | `Pg::orders` | `orders` and `order_lines`: hold, buyer, status, version, total, lines, where the deadline is, the applied payment |
//! | `Pg::payments`, `Pg::refunds` | the tables, without methods, reasons and times |
//!
//! What the model leaves out, and so is not compared: who waits for whom (one call at a time here:
//! interleavings are the walk's), deadlines as times (four moments stand for them, three hours or
//! more apart here), what the catalogue may become (SKUs do not change), refund keys (one per
//! payment), history and outbox rows, requests by Kafka. A unit costs 1 there and 1,000 here.
//!
//! `HOLDFAST_REFINEMENT_REDIS` and `HOLDFAST_REFINEMENT_POSTGRES` say how many commands; `make
//! model` asks for 100,000 and 20,000. `HOLDFAST_SEED` repeats a run; a walk that fails prints its own.
#![expect(
    clippy::unwrap_used,
    reason = "a test that can't go on should say where"
)]

mod agreement;
mod coverage;
mod names;
mod postgres;
mod scripts;
