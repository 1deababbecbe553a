//! Kafka: the only package that names rdkafka: consumer runner, relay, topics, dead letters.
