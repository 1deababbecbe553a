//! The holdfast binary and what it is made of: servers, load, verify.
