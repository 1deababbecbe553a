//! End-to-end, fault and contract suites on real servers.
