//! A client as shops should write it, and what it was told.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use cli::http_client::Answer;
use futures::future::join_all;
use http::Method;
use serde_json::Value;

use crate::{Api, World, api, wait_for, world::SHOP_KEY};

/// What a sane client does: the same key again until the answer is definite, at whichever service
/// answers.
#[derive(Clone)]
pub struct Client {
    apis: Vec<Api>,
}

/// A definite answer, and how often nobody knew before.
#[derive(Debug, Clone)]
pub struct Definite {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Value,
    /// Attempts that had no answer: a broken connection, a time-out, 503 `outcome: unknown`.
    pub unknown: u32,
}

impl Definite {
    /// The order of a 201.
    ///
    /// # Panics
    /// It is none.
    #[must_use]
    pub fn order(&self) -> String {
        assert_eq!(self.status, 201, "{}", self.body);
        self.body["order_id"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

impl Client {
    /// A client of the order services at these addresses.
    #[must_use]
    pub fn new<'a>(urls: impl IntoIterator<Item = &'a str>) -> Self {
        let apis = urls.into_iter().map(|url| Api::new(url, SHOP_KEY));
        Self {
            apis: apis.collect(),
        }
    }

    /// Places an order, first at the service of this number.
    ///
    /// # Panics
    /// No definite answer within the bound.
    pub async fn place(&self, first: usize, key: &str, body: &Value) -> Definite {
        let (mut at, mut unknown) = (first, 0);
        let begun = platform::clock::monotonic();
        loop {
            let api = &self.apis[at % self.apis.len()];
            let bytes = Bytes::from(body.to_string());
            let asked = api.try_send(Method::POST, "/v1/orders", Some(key), Some(bytes));
            match tokio::time::timeout(Duration::from_secs(4), asked).await {
                Ok(Ok(answer)) if is_definite(&answer) => {
                    return Definite {
                        status: answer.status.as_u16(),
                        body: answer.json(),
                        unknown,
                    };
                }
                Ok(Ok(answer)) => unknown += u32::from(answer.json()["outcome"] == "unknown"),
                Ok(Err(_)) | Err(_) => unknown += 1,
            }
            at += 1;
            assert!(
                begun.elapsed() < crate::wait::BOUND,
                "{key}: no definite answer"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// One request wherever it is answered.
    ///
    /// # Panics
    /// It is answered nowhere within the bound.
    pub async fn get(&self, path: &str) -> Value {
        wait_for(path, || async {
            for api in &self.apis {
                let asked = api.try_send(Method::GET, path, None, None);
                if let Ok(Ok(answer)) = tokio::time::timeout(Duration::from_secs(4), asked).await
                    && answer.status == 200
                {
                    return Some(answer.json());
                }
            }
            None
        })
        .await
    }
}

fn is_definite(answer: &Answer) -> bool {
    let in_flight = answer.status == 409 && answer.json()["code"] == "request-in-flight";
    !in_flight && !matches!(answer.status.as_u16(), 429 | 500..)
}

/// What clients were told: the order of each key.
#[derive(Debug, Default)]
pub struct Told {
    /// Body and order of each key that was answered 201.
    pub orders: BTreeMap<String, (Value, String)>,
    /// Attempts that had no answer.
    pub unknown: u32,
    /// Keys that had no answer at all.
    open: Vec<(String, Value)>,
}

impl Told {
    /// Places `count` orders of one unit at once, first at the service of this number; all are
    /// accepted.
    ///
    /// # Panics
    /// One is not.
    pub async fn place(
        &mut self,
        client: &Client,
        first: usize,
        sku: &str,
        name: &str,
        count: usize,
    ) {
        let placed = join_all((0..count).map(|number| {
            let client = client.clone();
            let key = format!("{name}-{number}");
            async move {
                let body = api::order(&format!("c-{key}"), &[(sku, 1)]);
                let answer = client.place(first, &key, &body).await;
                (key, body, answer)
            }
        }))
        .await;
        for (key, body, answer) in placed {
            self.unknown += answer.unknown;
            self.orders.insert(key, (body, answer.order()));
        }
    }

    /// Remembers a key that nobody has answered for: [`Told::holds`] asks what became of it.
    pub fn later(&mut self, key: &str, body: Value) {
        self.open.push((key.to_owned(), body));
    }

    /// Each key still has its order, each order is there, and there are no others.
    ///
    /// # Panics
    /// It is not so.
    pub async fn holds(&mut self, client: &Client, world: &World) {
        for (key, body) in std::mem::take(&mut self.open) {
            let order = client.place(0, &key, &body).await.order();
            self.orders.insert(key, (body, order));
        }
        let all: Vec<_> = self.orders.iter().enumerate().collect();
        for some in all.chunks(50) {
            join_all(
                some.iter()
                    .map(|(number, (key, (body, order)))| async move {
                        let again = client.place(*number, key, body).await;
                        assert_eq!(&again.order(), order, "{key} has another order now");
                    }),
            )
            .await;
        }
        let count = world.count("select count(*) from orders").await;
        assert_eq!(
            usize::try_from(count),
            Ok(self.orders.len()),
            "orders that nobody was told of"
        );
    }
}
