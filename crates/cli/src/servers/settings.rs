//! What the servers run with, wherever they run: the native processes take these constants, and a
//! test holds `docker-compose.yml` to them.

/// The version of Apache Kafka: the image's tag, and the Maven artifacts' version.
pub const KAFKA_VERSION: &str = "4.3.1";

/// The database that holds everything.
pub const DATABASE: &str = "holdfast";

/// PostgreSQL: durable (P15 refuses less), with room for the pools of several replicas.
pub const POSTGRES: &[(&str, &str)] = &[
    ("max_connections", "300"),
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    ("shared_buffers", "256MB"),
    ("max_wal_size", "4GB"),
    ("wal_compression", "lz4"),
    // New tables grow fast in a sale: with the default of a minute, prepared statements keep the
    // plans of the empty tables meanwhile, and their cost grows with every order.
    ("autovacuum_naptime", "1s"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
];

/// How a new PostgreSQL cluster is made.
pub const POSTGRES_INITDB: &[&str] = &["--encoding=UTF8", "--locale=C", "--data-checksums"];

/// How clients prove who they are, over a network.
pub const POSTGRES_AUTH: &str = "--auth-host=scram-sha-256";

/// The same on 127.0.0.1, where nobody listens in who could not read the password's file: SCRAM
/// would cost a client that is built without optimisation 70 ms for each connection.
pub const POSTGRES_AUTH_LOOPBACK: &str = "--auth-host=password";

/// Redis: nothing is evicted (P15 refuses else), and a restart finds its data.
pub const REDIS: &[(&str, &str)] = &[
    ("appendonly", "yes"),
    ("appendfsync", "everysec"),
    ("maxmemory-policy", "noeviction"),
    ("save", ""),
];

/// Kafka: topics only where someone asked for them, one node, and sessions so short that a killed
/// broker is back in 5 seconds instead of 12.
pub const KAFKA: &[(&str, &str)] = &[
    ("process.roles", "broker,controller"),
    ("node.id", "1"),
    ("controller.listener.names", "CONTROLLER"),
    ("auto.create.topics.enable", "false"),
    ("unclean.leader.election.enable", "false"),
    ("message.max.bytes", "1048576"),
    ("default.replication.factor", "1"),
    ("min.insync.replicas", "1"),
    ("offsets.topic.replication.factor", "1"),
    ("offsets.topic.num.partitions", "4"),
    ("transaction.state.log.replication.factor", "1"),
    ("transaction.state.log.min.isr", "1"),
    ("transaction.state.log.num.partitions", "1"),
    ("group.initial.rebalance.delay.ms", "0"),
    ("broker.session.timeout.ms", "2000"),
    ("broker.heartbeat.interval.ms", "300"),
];

/// The broker's heap.
pub const KAFKA_HEAP: &str = "-Xmx512m";
