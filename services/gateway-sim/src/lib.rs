//! A stand-in payment provider with a real HTTP API.
