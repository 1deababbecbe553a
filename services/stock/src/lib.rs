//! Settles reservations, expires orders, asks for refunds, sweeps and rebuilds the gate.
