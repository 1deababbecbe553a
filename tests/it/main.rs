//! One binary for every test that needs servers.
