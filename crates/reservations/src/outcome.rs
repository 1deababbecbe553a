//! The words that the scripts answer with, as exhaustive enums.

macro_rules! outcomes {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
            pub enum $name {
                $($(#[$variant_doc])* $variant,)*
            }

            impl $name {
                /// All of them, in the order of the script's header.
                pub const ALL: &[Self] = &[$(Self::$variant),*];
                /// Their words.
                pub const WORDS: &[&str] = &[$($word),*];

                /// The word of the script.
                #[must_use]
                pub fn as_str(self) -> &'static str {
                    match self { $(Self::$variant => $word),* }
                }
            }

            impl Word for $name {
                fn parse(word: &str) -> Option<Self> {
                    match word { $($word => Some(Self::$variant),)* _ => None }
                }
            }
        )*
    };
}

/// A word of a reply, read.
pub(crate) trait Word: Copy {
    fn parse(word: &str) -> Option<Self>;
}

outcomes! {
    /// What `reserve` says of an order. Where an order breaks several rules, the first of this
    /// order from `NotOpen` on is named.
    ReserveOutcome {
        /// Its units are held: join the accept.
        Ok = "OK",
        /// The same hold was there: join the accept, which knows whether it is a replay.
        Known = "KNOWN",
        /// The hold id is there with another buyer or other lines.
        Other = "OTHER",
        /// A sale opens later.
        NotOpen = "NOT_OPEN",
        /// A sale has ended.
        Over = "OVER",
        /// The buyer would hold and own more than one buyer may.
        Limit = "LIMIT",
        /// A line is short.
        SoldOut = "SOLD_OUT",
        /// The gate can't say: no open epoch, an unknown SKU, no answer. Go on without it.
        NoGate = "NO_GATE",
        /// A key of the gate holds what none of the scripts writes. Go on without the gate, and
        /// have the shard rebuilt.
        Damaged = "DAMAGED",
    }

    /// What `keep` says of a hold.
    KeepOutcome {
        /// It was there.
        Kept = "KEPT",
        /// It was missing and was added.
        Added = "ADDED",
        /// It was there with another buyer or other lines and was replaced.
        Replaced = "REPLACED",
        /// Its stored lines name SKUs that the call did not; asked again by the client.
        Mismatch = "MISMATCH",
        /// No epoch, or a SKU without a gate: nothing was done.
        NoGate = "NO_GATE",
        /// A key holds what none of the scripts writes: nothing was done.
        Damaged = "DAMAGED",
    }

    /// What `commit` and `release` say of a hold.
    SettleOutcome {
        /// It was there and has ended.
        Done = "DONE",
        /// It was not there: nothing was lowered.
        Absent = "ABSENT",
        /// Its stored lines name SKUs that the call did not; asked again by the client.
        Mismatch = "MISMATCH",
        /// No epoch: nothing was done.
        NoGate = "NO_GATE",
        /// A key holds what none of the scripts writes: nothing was done.
        Damaged = "DAMAGED",
    }

    /// What `keep`, `commit` and `release` say of a register.
    RegisterOutcome {
        /// It was newer and was taken.
        Set = "SET",
        /// It was not newer.
        Old = "OLD",
        /// None was given.
        None = "NONE",
        /// No epoch: nothing was done.
        NoGate = "NO_GATE",
        /// The gate's key holds what none of the scripts writes: nothing was done.
        Damaged = "DAMAGED",
    }

    /// What `correct_buyers` says of a buyer.
    BuyersOutcome {
        /// The units are what was asked for.
        Set = "SET",
        /// They were not what the caller had seen: nothing was done.
        Changed = "CHANGED",
        /// No epoch: nothing was done.
        NoGate = "NO_GATE",
        /// A key holds what none of the scripts writes: nothing was done.
        Damaged = "DAMAGED",
    }

    /// What `begin_epoch` and `open_epoch` say.
    EpochOutcome {
        /// The epoch is the newest one, and closed.
        Begun = "BEGUN",
        /// The epoch answers.
        Opened = "OPENED",
        /// Another epoch is the newest one: nothing was done.
        Superseded = "SUPERSEDED",
    }
}
