//! One binary for every test that needs servers. Each test has a world of its own and may run
//! alone or beside the others. A test that can't have its servers fails.

mod bad_input;
mod commits;
mod compose;
mod demo;
mod gate;
mod keys;
mod outages;
mod payments;
mod poison;
mod requests;
mod selling;
mod verify;
