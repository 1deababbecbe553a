//! The relay and the consumer runner on a real PostgreSQL and a real Kafka. `DATABASE_URL` names a
//! server on which databases may be created, `KAFKA_BROKERS` a cluster on which topics may; without
//! them these tests fail, because a skipped test is a green lie.
#![expect(
    clippy::unwrap_used,
    reason = "a failed step of a test is a failed test"
)]

mod broken;
mod consume;
mod dead;
mod failing;
mod gives_way;
mod group;
mod ill;
mod link;
mod proxy;
mod publish;
mod recorder;
mod records;
mod redrive;
mod waiting;
mod world;
