//! One binary for every test that needs servers. Each test has a world of its own and may run
//! alone or beside the others. A test that can't have its servers fails.

mod bad_input;
mod cases;
mod commits;
mod compose;
mod damage;
mod demo;
mod gate;
mod kafka_faults;
mod keys;
mod outages;
mod payments;
mod poison;
mod postgres_faults;
mod readers;
mod redis_faults;
mod redis_loss;
mod redrive;
mod requests;
mod restarts;
mod selling;
mod unknown_commits;
mod upstream;
mod verify;
