//! The gate on a real Redis. `REDIS_URL` names a server that these tests may share: each uses its
//! own key prefix. Tests that empty, fill or end a server start a private one.

mod cluster;
mod cost;
mod damage;
mod epochs;
mod follow;
mod hostile;
mod lost_replies;
mod outage;
mod properties;
mod server;
mod support;
mod verbs;
