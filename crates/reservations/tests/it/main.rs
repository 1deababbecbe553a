//! The gate on a real Redis. `REDIS_URL` names a server that these tests may share: each uses its
//! own key prefix. Tests that empty, fill or end a server start a private one.

mod cost;
mod damage;
mod epochs;
mod hostile;
mod outage;
mod properties;
mod server;
mod support;
mod verbs;
