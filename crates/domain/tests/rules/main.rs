//! The rules as tables to read, and what must hold of any batch.

mod accept;
mod accept_any;
mod batch;
mod deadline;
mod order;
mod settlement;
