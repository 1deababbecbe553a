//! A sale that goes on while something is ill: clients send their keys again until they have an
//! order, and at the end each key has one.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::json;

use crate::{Client, Options, Told, World, api};

/// The sale that goes on while the servers are ill.
pub struct Sale {
    /// Its world.
    pub world: World,
    /// Its clients.
    pub client: Client,
    /// What they were told.
    pub told: Told,
}

impl Sale {
    /// A world with a SKU to sell.
    pub async fn open(options: Options) -> Self {
        let world = World::with(options).await;
        world.operator().put_sku("FAULT", 100_000, &json!({})).await;
        let client = Client::new(world.order.iter().map(|order| order.url.as_str()));
        Self {
            world,
            client,
            told: Told::default(),
        }
    }

    /// Places orders at once; says what it was like.
    pub async fn goes_on(&mut self, during: &str, orders: usize) {
        let (begun, unknown) = (platform::clock::monotonic(), self.told.unknown);
        let name = during.replace(' ', "-");
        self.told
            .place(&self.client, 0, "FAULT", &name, orders)
            .await;
        let unknown = self.told.unknown - unknown;
        let took = begun.elapsed().as_millis();
        eprintln!(
            "{during}: {orders} of {orders} orders in {took} ms, {unknown} unanswered before"
        );
    }

    /// Every key has its order, every order is confirmed, every invariant holds.
    ///
    /// # Panics
    /// It is not so.
    pub async fn closes(mut self) {
        self.told.holds(&self.client, &self.world).await;
        self.world.settled().await;
        let confirmed = "select count(*) from orders where status = 'CONFIRMED'";
        let confirmed = self.world.count(confirmed).await;
        assert_eq!(usize::try_from(confirmed), Ok(self.told.orders.len()));
        self.world.end().await;
    }

    /// An order that can't be decided is 503 within 5 s, never a refusal; its key is not forgotten: it
    /// may have an order, and is asked for again at the end.
    ///
    /// # Panics
    /// It is answered otherwise, or not.
    pub async fn is_refused(&mut self, key: &str) {
        let shop = self.world.shop();
        let body = api::order("c", &[("FAULT", 1)]);
        let bytes = Bytes::from(body.to_string());
        let asked = shop.try_send(Method::POST, "/v1/orders", Some(key), Some(bytes));
        match tokio::time::timeout(Duration::from_secs(5), asked).await {
            Ok(Ok(answer)) => assert_eq!(answer.status, 503, "{key}: {}", answer.json()),
            Ok(Err(error)) => panic!("{key}: {error:#}"),
            Err(_) => panic!("{key}: no answer within 5 s"),
        }
        self.told.later(key, body);
    }
}
