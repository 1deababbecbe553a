//! Topics and consumer groups: the only place where their names are spelled.

use std::fmt;

/// A topic of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    /// What happened to orders, and refund requests.
    Orders,
    /// What happened to payments; one principal writes it.
    Payments,
    /// What happened to stock.
    Stock,
    /// What happened to coupons.
    Coupons,
    /// Orders that upstream services ask for.
    OrderRequests,
}

impl Topic {
    /// All topics that `holdfast topics` creates.
    pub const ALL: [Self; 5] = [
        Self::Orders,
        Self::Payments,
        Self::Stock,
        Self::Coupons,
        Self::OrderRequests,
    ];

    /// The name, without the suffix that a test run adds.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Orders => "orders.v1",
            Self::Payments => "payments.v1",
            Self::Stock => "stock.v1",
            Self::Coupons => "coupons.v1",
            Self::OrderRequests => "orders.requests.v1",
        }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A consumer of ours. Renaming one replays its topic: the name is the group and the inbox key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConsumerName {
    /// Order requests by Kafka.
    Order,
    /// Charges and refunds.
    Payment,
    /// Settlement.
    Stock,
}

impl ConsumerName {
    /// All consumers.
    pub const ALL: [Self; 3] = [Self::Order, Self::Payment, Self::Stock];

    /// The name in the inbox.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Payment => "payment",
            Self::Stock => "stock",
        }
    }

    /// The consumer group, without the suffix that a test run adds.
    #[must_use]
    pub fn group(self) -> &'static str {
        match self {
            Self::Order => "holdfast.order",
            Self::Payment => "holdfast.payment",
            Self::Stock => "holdfast.stock",
        }
    }

    /// The topic that it reads.
    #[must_use]
    pub fn topic(self) -> Topic {
        match self {
            Self::Order => Topic::OrderRequests,
            Self::Payment => Topic::Orders,
            Self::Stock => Topic::Payments,
        }
    }

    /// `TOPIC.GROUP.dlq`, without the suffix that a test run adds.
    #[must_use]
    pub fn dlq(self) -> String {
        format!("{}.{}.dlq", self.topic(), self.group())
    }
}

/// Names as the broker knows them. The suffix is empty in production; each test has its own.
#[derive(Debug, Clone, Default)]
pub struct TopicNames {
    suffix: String,
}

impl TopicNames {
    /// Names that all end in `suffix`.
    #[must_use]
    pub fn new(suffix: &str) -> Self {
        Self {
            suffix: suffix.to_owned(),
        }
    }

    /// The broker's name of a topic.
    #[must_use]
    pub fn topic(&self, topic: Topic) -> String {
        self.apply(topic.as_str())
    }

    /// The broker's name of a group.
    #[must_use]
    pub fn group(&self, consumer: ConsumerName) -> String {
        self.apply(consumer.group())
    }

    /// The broker's name of a consumer's dead letter topic.
    #[must_use]
    pub fn dlq(&self, consumer: ConsumerName) -> String {
        self.apply(&consumer.dlq())
    }

    /// The broker's name of a name that was stored without suffix, as in the outbox.
    #[must_use]
    pub fn apply(&self, base: &str) -> String {
        format!("{base}{}", self.suffix)
    }
}
