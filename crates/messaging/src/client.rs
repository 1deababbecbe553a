//! Every option that we set on a Kafka client, in one place: nothing relies on a default.

use rdkafka::{
    ClientConfig,
    client::ClientContext,
    config::{FromClientConfig, RDKafkaLogLevel},
    error::KafkaResult,
    producer::FutureProducer,
};

/// The greatest record of a topic of the contract, in bytes.
pub(crate) const RECORD_BYTES_MAX: u32 = 1_048_576;
/// The greatest record of a dead letter topic: the greatest record and its additional headers.
pub(crate) const DEAD_RECORD_BYTES_MAX: u32 = 2 * RECORD_BYTES_MAX;
/// What producers accept at all; the broker refuses the rest, topic by topic.
const REQUEST_BYTES_MAX: u32 = DEAD_RECORD_BYTES_MAX + 65_536;

/// How long a broker may be silent while an answer is due, in milliseconds.
const SILENCE_MAX_MS: &str = "3000";

fn base(brokers: &str, client_id: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("client.id", client_id)
        .set("socket.keepalive.enable", "true")
        .set("socket.nagle.disable", "true")
        // a broker that falls silent is found within this (F41); a request that is sent again is
        // no second effect: the producer is idempotent, everything else only reads
        .set("socket.timeout.ms", SILENCE_MAX_MS)
        .set("socket.connection.setup.timeout.ms", SILENCE_MAX_MS)
        .set("reconnect.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "1000")
        // a topic or partition that is made later is seen within this
        .set("topic.metadata.refresh.interval.ms", "5000")
        .set("metadata.max.age.ms", "15000")
        .set("allow.auto.create.topics", "false")
        .set("log.connection.close", "false")
        .set_log_level(RDKafkaLogLevel::Warning);
    config
}

/// The producer of the relay, of tools and of tests: idempotent, acknowledged by all replicas,
/// and it never gives up by time, since a send that "timed out" may turn up later.
pub(crate) fn producer<C, P>(brokers: &str, client_id: &str, context: C) -> KafkaResult<P>
where
    C: ClientContext,
    P: rdkafka::config::FromClientConfigAndContext<C>,
{
    let mut config = base(brokers, client_id);
    config
        .set("acks", "all")
        .set("enable.idempotence", "true")
        // a batch that fails for good stops this producer, so that no later record of its keys
        // overtakes it; the relay begins again with a new one
        .set("enable.gapless.guarantee", "true")
        .set("max.in.flight.requests.per.connection", "5")
        .set("message.timeout.ms", "0")
        .set("request.timeout.ms", "10000")
        .set("retry.backoff.ms", "50")
        .set("retry.backoff.max.ms", "1000")
        .set("linger.ms", "2")
        .set("compression.type", "lz4")
        .set("batch.size", "262144")
        .set("batch.num.messages", "10000")
        .set("message.max.bytes", REQUEST_BYTES_MAX.to_string())
        .set("queue.buffering.max.messages", "50000")
        .set("queue.buffering.max.kbytes", "131072")
        // the partition that a Java producer would choose for the key
        .set("partitioner", "murmur2_random")
        .set("topic.metadata.propagation.max.ms", "5000");
    config.create_with_context(context)
}

/// [`producer`] with futures for tools.
pub(crate) fn future_producer(brokers: &str, client_id: &str) -> KafkaResult<FutureProducer> {
    producer(brokers, client_id, rdkafka::client::DefaultClientContext)
}

/// A member of a group. Offsets are stored by us after the transaction, and only then; what is
/// stored is sent to the broker every half second, when partitions are given back and at the end.
pub(crate) fn member<C, T>(
    brokers: &str,
    client_id: &str,
    group: &str,
    context: C,
) -> KafkaResult<T>
where
    C: ClientContext,
    T: rdkafka::config::FromClientConfigAndContext<C>,
{
    let mut config = base(brokers, client_id);
    config
        .set("group.id", group)
        .set("group.protocol", "classic")
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("enable.auto.offset.store", "false")
        .set("enable.auto.commit", "true")
        .set("auto.commit.interval.ms", "500")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .set("check.crcs", "true")
        // dynamic membership: a member that ends leaves, so that its partitions move at once
        .set("session.timeout.ms", "10000")
        .set("heartbeat.interval.ms", "2000")
        // a thread of its own polls; and so long, and 3 s, a member that joins may wait for the answer:
        // the one request that the bound of a silent broker does not hold for
        .set("max.poll.interval.ms", "30000")
        .set("fetch.wait.max.ms", "50")
        .set("fetch.min.bytes", "1")
        .set("fetch.error.backoff.ms", "200")
        .set("fetch.message.max.bytes", RECORD_BYTES_MAX.to_string())
        .set("fetch.max.bytes", (16 * RECORD_BYTES_MAX).to_string())
        .set("queued.min.messages", "5000")
        .set("queued.max.messages.kbytes", "16384")
        .set("enable.partition.eof", "false")
        .set("statistics.interval.ms", "2000");
    config.create_with_context(context)
}

/// A reader outside of any membership: for tools.
pub(crate) fn reader<T: FromClientConfig>(brokers: &str, group: &str) -> KafkaResult<T> {
    let mut config = base(brokers, "holdfast-reader");
    config
        .set("group.id", group)
        .set("enable.auto.offset.store", "false")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .set("fetch.wait.max.ms", "50")
        .set("enable.partition.eof", "true");
    config.create()
}

/// For requests about topics.
pub(crate) fn admin<T: FromClientConfig>(brokers: &str) -> KafkaResult<T> {
    base(brokers, "holdfast-admin").create()
}
