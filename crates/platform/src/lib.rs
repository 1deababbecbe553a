//! Configuration, telemetry, shutdown, clock and the operations port; imports nothing of ours.
