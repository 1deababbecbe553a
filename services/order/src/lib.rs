//! Places, reads and cancels orders over HTTP and Kafka; administers stock.
