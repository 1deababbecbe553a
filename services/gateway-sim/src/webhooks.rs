//! Sends webhooks: signed, delayed and repeated as the behaviour says, and again with growing
//! pauses until the receiver answers 2xx or eight attempts have failed. The queue is bounded; a
//! full one drops and counts, since a receiver must ask for results anyway.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use contracts::Timestamp;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use platform::{Shutdown, clock};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc};

use crate::{Behaviour, signature};

const QUEUE: usize = 10_000;
const CONCURRENT: usize = 32;
const ATTEMPTS: u32 = 8;
const TIMEOUT: Duration = Duration::from_secs(5);

/// The body of a webhook.
#[derive(Debug, Serialize)]
struct Notice<T> {
    id: String,
    #[serde(rename = "type")]
    notice_type: &'static str,
    created_at: Timestamp,
    data: T,
}

#[derive(Debug)]
struct Delivery {
    body: Bytes,
    delay: Duration,
}

/// The queue of webhooks that are to be sent.
#[derive(Debug)]
pub(crate) struct Webhooks {
    queue: mpsc::Sender<Delivery>,
}

#[derive(Clone)]
struct Sender {
    client: Client<HttpConnector, Full<Bytes>>,
    url: http::Uri,
    secret: SecretString,
    shutdown: Shutdown,
}

impl Webhooks {
    pub(crate) fn start(url: http::Uri, secret: SecretString, shutdown: &Shutdown) -> Self {
        let (queue, deliveries) = mpsc::channel(QUEUE);
        let client = Client::builder(TokioExecutor::new()).build_http();
        let sender = Sender {
            client,
            url,
            secret,
            shutdown: shutdown.clone(),
        };
        shutdown.spawn(sender.run(deliveries));
        Self { queue }
    }

    /// Queues a notice, and its repeats.
    pub(crate) fn notify<T: Serialize>(
        &self,
        behaviour: &Behaviour,
        notice_type: &'static str,
        data: T,
    ) {
        if !behaviour.webhooks {
            return;
        }
        let id = format!("evt_{}", contracts::ids::generate().simple());
        let notice = Notice {
            id,
            notice_type,
            created_at: clock::now(),
            data,
        };
        let Ok(body) = serde_json::to_vec(&notice).map(Bytes::from) else {
            return;
        };
        let delay = Duration::from_millis(behaviour.webhook_delay_ms);
        for _ in 0..=behaviour.webhook_duplicates {
            if self
                .queue
                .try_send(Delivery {
                    body: body.clone(),
                    delay,
                })
                .is_err()
            {
                tracing::warn!(notice.id = notice.id, "webhook dropped: the queue is full");
            }
        }
    }
}

impl Sender {
    async fn run(self, mut deliveries: mpsc::Receiver<Delivery>) {
        let permits = Arc::new(Semaphore::new(CONCURRENT));
        loop {
            let delivery = tokio::select! {
                () = self.shutdown.begun() => return,
                delivery = deliveries.recv() => delivery,
            };
            let Some(delivery) = delivery else { return };
            // A delayed webhook holds no permit while it waits, or it would delay the others.
            let (sender, permits) = (self.clone(), Arc::clone(&permits));
            self.shutdown
                .spawn(async move { sender.deliver(delivery, &permits).await });
        }
    }

    async fn deliver(&self, delivery: Delivery, permits: &Semaphore) {
        let mut pause = delivery.delay;
        for attempt in 0..ATTEMPTS {
            tokio::select! {
                () = self.shutdown.begun() => return,
                () = tokio::time::sleep(pause) => {}
            }
            let Ok(_permit) = permits.acquire().await else {
                return;
            };
            match tokio::time::timeout(TIMEOUT, self.send(delivery.body.clone())).await {
                Ok(Ok(status)) if status.is_success() => return,
                Ok(Ok(status)) => tracing::debug!(%status, attempt, "webhook refused"),
                Ok(Err(error)) => tracing::debug!(%error, attempt, "webhook not delivered"),
                Err(_) => tracing::debug!(attempt, "webhook timed out"),
            }
            pause = Duration::from_millis(250 << attempt);
        }
        tracing::warn!(attempts = ATTEMPTS, "webhook given up");
    }

    async fn send(
        &self,
        body: Bytes,
    ) -> Result<http::StatusCode, Box<dyn std::error::Error + Send + Sync>> {
        let signature =
            signature::sign(self.secret.expose_secret(), clock::now().timestamp(), &body);
        let request = http::Request::post(self.url.clone())
            .header(http::header::CONTENT_TYPE, "application/json")
            .header(signature::HEADER, signature)
            .body(Full::new(body))?;
        let response = self.client.request(request).await?;
        let status = response.status();
        // Read to its end, so that the connection is used again.
        http_body_util::Limited::new(response.into_body(), 65_536)
            .collect()
            .await?;
        Ok(status)
    }
}
