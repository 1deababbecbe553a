//! Paired benchmarks: the baselines that Holdfast is measured against.
