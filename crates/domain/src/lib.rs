//! Pure rules of Holdfast: no clock, no runtime, no driver. What time it is, and what the stores
//! hold, is told to these functions; what is to be written comes out of them.

pub mod accept;
pub mod deadline;
pub mod gate;
pub mod order;
pub mod settlement;

pub use accept::{Accepted, BuyerView, Decision, OrderRequest, Plan, Refusal, SkuView, plan_batch};
pub use gate::{Buyer, Hold, HoldState, HoldView, Register, Shard};
pub use order::{EndReason, OrderStatus, Transition, Trigger};
