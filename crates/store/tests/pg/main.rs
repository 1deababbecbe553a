//! The statements of `store` on a real PostgreSQL. `DATABASE_URL` names a server on which databases
//! may be created; without it these tests fail, because a skipped test is a green lie.

mod accept;
mod catalogue;
mod ending;
mod failures;
mod locks;
mod messages;
mod outbox;
mod plans;
mod reading;
mod sums;
mod support;
