//! Rules of the protocol that the checker must miss: each is broken on its own, and some
//! configuration must find a state that breaks a promise.

macro_rules! mutations {
    ($($(#[$doc:meta])* $name:ident in $configuration:literal: $what:literal,)*) => {
        /// A rule of the protocol, broken on purpose.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Mutation {
            $(#[doc = $what] $name,)*
        }

        impl Mutation {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// What is done instead of what the protocol says.
            #[must_use]
            pub fn what(self) -> &'static str {
                match self { $(Self::$name => $what),* }
            }

            /// The configuration that must find it.
            #[must_use]
            pub fn configuration(self) -> &'static str {
                match self { $(Self::$name => $configuration),* }
            }

            /// Its name in tables.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }
    };
}

mutations! {
    // Accept and gate (P1, P2, P4, P11).
    CompensateOnAnyError in "accept-unknown": "a lost reply to COMMIT is answered as if nothing had been taken, and the hold is given back (closed by P4)",
    RefusalWithoutLookUp in "accept-loss": "a refusal of the gate is answered without looking its key up (closed by P2)",
    FlagAnsweringAlone in "accept-twins": "a process remembers that a SKU was sold out and answers alone (closed by P2)",
    NoDeadlineInAccept in "accept-unknown": "the accept takes requests whose deadline has passed (closed by P1, P11)",
    RedisDecides in "accept-twins": "what the gate has let through is accepted without looking at the stock (closed by P1)",
    NoPrimaryKey in "accept-twins": "a key may be claimed twice (closed by P1)",
    RefusalStored in "accept-twins": "a refusal keeps its key (closed by P1 step 6)",
    ReplayIgnoresFingerprint in "accept-bodies": "another body under a used key is answered with the first order (closed by P11)",
    // The gate (P2, P3, P10).
    ReleaseWithoutHold in "syncs": "units leave `held` though the hold was not there (closed by P2)",
    IncrInsteadOfRegister in "syncs": "the limit is a counter that each commit lowers (closed by P2)",
    RegisterWithoutVersion in "syncs": "a register that comes late replaces a newer one (closed by P2)",
    TtlAsTruth in "syncs": "a hold is a key with a time to live, and vanishes by itself (closed by P5)",
    OpenAnyEpoch in "rebuild": "a rebuild that was overtaken opens the epoch of another (closed by P10)",
    OpenBeforeHolds in "rebuild": "a rebuilt epoch is opened before the holds are in (closed by P10)",
    SweepReleasesLive in "syncs": "the sweep gives back every hold that is due, without asking PostgreSQL (closed by P5)",
    BuyerKeepsUnits in "syncs": "the units of an ended order stay with its buyer (closed by P1 step 6)",
    // Settlement, expiry, payments (P5, P6, P9).
    OffsetsBeforeCommit in "settle-ours": "offsets are stored before the transaction commits (closed by P9)",
    ExpiryOneStatement in "settle-ours": "expiry looks at payments in the statement that waits for the lock (closed by P5)",
    ExpiryIgnoresPayments in "settle-ours": "expiry does not look at payments at all (closed by P5)",
    ChargeWithoutGuard in "settle-ours": "a charge begins without the guarded read (closed by P5)",
    ChargeKeyPerAttempt in "settle-ours": "each attempt to charge has a key of its own at the gateway (closed by P4)",
    SweepGivesUp in "settle-ours": "an unknown outcome at the gateway counts as a failure (closed by P4)",
    LastNewsWins in "settle-upstream": "a capture confirms an order that has ended (closed by P6)",
    LateCaptureKept in "settle-upstream": "a capture for an ended order is recorded and not refunded (closed by P6)",
    AnyAmountConfirms in "settle-upstream": "a capture of the wrong amount confirms the order (closed by P6)",
    RefundKeyPerAsk in "settle-upstream": "each ask for a refund has a refund key of its own (closed by P6)",
    RefundAskedOnce in "settle-upstream": "a refund is asked for once, and not again (closed by P6)",
    // The relay (P8).
    CursorById in "relay": "the relay reads on from the greatest id alone (closed by P8)",
    GapClosedByXmax in "relay": "a gap is closed when the snapshot's xmax has passed the fence (closed by P8)",
    GapClosedWithoutFence in "relay": "a gap is closed at the next read (closed by P8)",
    CursorByXid in "relay": "events are read and sent in the order of transaction ids (closed by P8)",
    WatermarkPastUnacked in "relay": "the watermark moves to what was sent (closed by P8)",
    StaleLeaderMoves in "relay": "a leader that lost its lock still moves the watermark (closed by P8)",
    // Locks (P1).
    WrongSortOrder in "locks": "one kind of transaction sorts SKUs by another collation (closed by `collate \"C\"`)",
    UnsortedStock in "locks": "stock rows are locked in the order of the lines (closed by P1)",
    StockBeforeOrders in "locks": "one kind of transaction locks stock before its order (closed by P1)",
}
