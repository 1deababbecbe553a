//! News of payments, as whoever writes payments.v1 tells them, and its delivery.

use contracts::{
    ConsumerName, Money, OrderId, PaymentId, PaymentMethod, RefundKey, Timestamp,
    events::{PaymentCompleted, PaymentEvent, PaymentFailed, PaymentRefunded},
};
use messaging::{Aside, Handler, Inbound, Position};
use stock::SettleOrders;

use super::World;

/// News of a payment, with the id that makes it an event.
#[derive(Debug, Clone)]
pub(crate) struct News {
    pub(crate) id: String,
    pub(crate) event: PaymentEvent,
}

impl News {
    fn new(event: PaymentEvent) -> Self {
        Self {
            id: contracts::ids::generate().to_string(),
            event,
        }
    }

    /// The same news as another event.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.event.clone())
    }

    fn inbound(&self) -> Inbound<PaymentEvent> {
        Inbound {
            source: "/test".to_owned(),
            event_id: self.id.clone(),
            time: None,
            aggregate_version: None,
            traceparent: None,
            position: Position {
                topic: "payments.v1".into(),
                partition: 0,
                offset: 0,
            },
            event: self.event.clone(),
        }
    }
}

pub(crate) fn completed(payment: &str, order: OrderId, amount: Money) -> News {
    News::new(PaymentEvent::Completed(PaymentCompleted {
        payment_id: PaymentId::parse(payment).unwrap(),
        order_id: order,
        amount,
        method: PaymentMethod::parse("card").unwrap(),
        completed_at: at(0),
    }))
}

pub(crate) fn failed(payment: &str, order: OrderId, is_final: bool) -> News {
    News::new(PaymentEvent::Failed(PaymentFailed {
        payment_id: PaymentId::parse(payment).unwrap(),
        order_id: order,
        reason_code: "declined".to_owned(),
        is_final,
    }))
}

pub(crate) fn refunded(key: &str, payment: &str, order: OrderId, amount: Money) -> News {
    News::new(PaymentEvent::Refunded(PaymentRefunded {
        refund_key: RefundKey::parse(key).unwrap(),
        payment_id: PaymentId::parse(payment).unwrap(),
        order_id: order,
        amount,
    }))
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + chrono::TimeDelta::seconds(1_800_000_000 + seconds)
}

impl World {
    /// Delivers news as the runner does: inbox, handler, commit, `after_commit`.
    pub(crate) async fn deliver(&self, news: &[News]) -> Vec<Aside> {
        self.try_deliver(news).await.unwrap()
    }

    pub(crate) async fn try_deliver(
        &self,
        news: &[News],
    ) -> Result<Vec<Aside>, messaging::HandleError> {
        self.deliver_by(&self.settle, news).await
    }

    pub(crate) async fn deliver_by(
        &self,
        handler: &SettleOrders,
        news: &[News],
    ) -> Result<Vec<Aside>, messaging::HandleError> {
        let mut tx = self.stock.store.begin().await?;
        let mut keys: Vec<(String, String)> = news
            .iter()
            .map(|one| ("/test".to_owned(), one.id.clone()))
            .collect();
        keys.sort();
        keys.dedup();
        let new = store::inbox::insert(&mut tx, ConsumerName::Stock, &keys).await?;
        let mut seen = std::collections::HashSet::new();
        let events: Vec<Inbound<PaymentEvent>> = news
            .iter()
            .filter(|one| {
                new.contains(&("/test".to_owned(), one.id.clone())) && seen.insert(one.id.clone())
            })
            .map(News::inbound)
            .collect();
        let asides = if events.is_empty() {
            Vec::new()
        } else {
            handler.handle(&mut tx, &events, ()).await?
        };
        tx.commit().await?;
        let all: Vec<_> = news.iter().map(News::inbound).collect();
        handler.after_commit(&all).await;
        Ok(asides)
    }

    /// The same without `after_commit`: a process that died in between.
    pub(crate) async fn deliver_and_die(&self, news: &[News]) {
        let mut tx = self.stock.store.begin().await.unwrap();
        let events: Vec<_> = news.iter().map(News::inbound).collect();
        self.settle.handle(&mut tx, &events, ()).await.unwrap();
        tx.commit().await.unwrap();
    }
}
