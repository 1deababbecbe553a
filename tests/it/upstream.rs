//! The payment system of somebody else, in whose place a test pays.

use contracts::{Topic, envelope};
use messaging::admin::Producer;
use serde_json::{Value, json};
use tests::{Options, World, wait_for};

/// What one unit of a test's SKU costs.
pub(crate) const PRICE: i64 = 12_900;

/// A system in which the test pays.
pub(crate) async fn upstream() -> World {
    World::with(Options {
        upstream: true,
        ..Options::default()
    })
    .await
}

/// The upstream payment system.
pub(crate) struct Upstream<'a> {
    world: &'a World,
    producer: Producer,
}

impl<'a> Upstream<'a> {
    pub(crate) const SOURCE: &'static str = "/upstream/payments";

    pub(crate) fn new(world: &'a World) -> Self {
        match Producer::new(&world.brokers) {
            Ok(producer) => Self { world, producer },
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn completed(payment: &str, order: &str, (minor, currency): (i64, &str)) -> Value {
        json!({ "payment_id": payment, "order_id": order, "method": "card",
                "amount": { "amount_minor": minor, "currency": currency },
                "completed_at": "2026-11-29T12:00:00Z" })
    }

    /// Writes an event, to the partition of the order or to a given one.
    pub(crate) async fn write(
        &self,
        at: Option<i32>,
        event: (&str, &str),
        order: &str,
        data: &Value,
    ) {
        let (id, event_type) = event;
        let schema = envelope::dataschema(event_type);
        let headers: Vec<(&str, &[u8])> = [
            (envelope::header::SPECVERSION, "1.0"),
            (envelope::header::ID, id),
            (envelope::header::SOURCE, Self::SOURCE),
            (envelope::header::TYPE, event_type),
            (envelope::header::SUBJECT, order),
            (envelope::header::DATASCHEMA, schema.as_str()),
            (envelope::header::CONTENT_TYPE, envelope::CONTENT_TYPE),
        ]
        .map(|(name, value)| (name, value.as_bytes()))
        .to_vec();
        let topic = self.world.names.topic(Topic::Payments);
        let (key, data) = (Some(order.as_bytes()), data.to_string());
        let payload = Some(data.as_bytes());
        let sent = match at {
            Some(partition) => {
                let to = (topic.as_str(), partition);
                self.producer.send_to(to, key, &headers, payload).await
            }
            None => self.producer.send(&topic, key, &headers, payload).await,
        };
        if let Err(error) = sent {
            panic!("{topic}: {error}");
        }
    }

    /// `PAYMENT_COMPLETED` with the right amount for one unit.
    pub(crate) async fn pays(&self, event: &str, payment: &str, order: &str) {
        let data = Self::completed(payment, order, (PRICE, "KRW"));
        self.write(None, (event, "PAYMENT_COMPLETED"), order, &data)
            .await;
    }

    /// `PAYMENT_FAILED`.
    pub(crate) async fn fails(&self, event: &str, payment: &str, order: &str, is_final: bool) {
        let data = json!({ "payment_id": payment, "order_id": order,
                           "reason_code": "declined", "final": is_final });
        self.write(None, (event, "PAYMENT_FAILED"), order, &data)
            .await;
    }

    /// Waits until so many different events of this source were handled.
    pub(crate) async fn handled(&self, events: i64) {
        let sql = format!(
            "select count(*) from inbox where source = '{}'",
            Self::SOURCE
        );
        wait_for(&format!("{events} events to be handled"), || async {
            (self.world.count(&sql).await >= events).then_some(())
        })
        .await;
    }
}
