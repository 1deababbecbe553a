//! A proxy in front of the broker that its clients are sent back to: in the broker's answers its own
//! address stands in place of the broker's.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use rdkafka::{
    ClientConfig,
    consumer::{BaseConsumer, Consumer},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// What it does with bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    /// They go nowhere, and nobody is told.
    Silent,
    /// The same for the connections of this client alone, old and new.
    SilentFor(String),
}

pub(crate) struct Link {
    pub(crate) brokers: String,
    mode: watch::Sender<Mode>,
    swallowed: Arc<AtomicUsize>,
}

/// The broker's address as it gives it itself.
async fn advertised(brokers: &str) -> (String, i32) {
    let brokers = brokers.to_owned();
    let asked = tokio::task::spawn_blocking(move || {
        let client: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .create()
            .unwrap();
        let within = std::time::Duration::from_secs(30);
        let metadata = client.fetch_metadata(None, within).unwrap();
        let broker = metadata.brokers().first().unwrap();
        (broker.host().to_owned(), broker.port())
    });
    asked.await.unwrap()
}

impl Link {
    pub(crate) async fn start(brokers: &str) -> Self {
        let (host, port) = advertised(brokers).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = i32::from(listener.local_addr().unwrap().port());
        let address = |port: i32| [host.as_bytes(), &port.to_be_bytes()].concat();
        let (theirs, ours) = (address(port), address(own));
        let (mode, watched) = watch::channel(Mode::Pass);
        let swallowed = Arc::new(AtomicUsize::new(0));
        let (target, count) = (format!("{host}:{port}"), swallowed.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let connection = Connection {
                    mode: watched.clone(),
                    swallowed: count.clone(),
                    addresses: (theirs.clone(), ours.clone()),
                    client_id: String::new(),
                    spoilt: false,
                };
                let target = target.clone();
                tokio::spawn(async move {
                    let server = TcpStream::connect(target).await.unwrap();
                    connection.forward(client, server).await;
                });
            }
        });
        Self {
            brokers: format!("{host}:{own}"),
            mode,
            swallowed,
        }
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Pieces that went nowhere.
    pub(crate) fn swallowed(&self) -> usize {
        self.swallowed.load(Ordering::Relaxed)
    }
}

struct Connection {
    mode: watch::Receiver<Mode>,
    swallowed: Arc<AtomicUsize>,
    addresses: (Vec<u8>, Vec<u8>),
    /// Stands in the head of each request.
    client_id: String,
    /// It has lost bytes and can't go on.
    spoilt: bool,
}

impl Connection {
    async fn forward(mut self, mut client: TcpStream, mut server: TcpStream) {
        let (mut from_client, mut from_server) = (vec![0; 65_536], vec![0; 65_536]);
        let mut answers = Vec::new();
        loop {
            tokio::select! {
                read = client.read(&mut from_client) => {
                    let Ok(read @ 1..) = read else { return };
                    let bytes = &from_client[..read];
                    if self.client_id.is_empty() {
                        self.client_id = client_id(bytes).unwrap_or_default();
                    }
                    if !self.swallows() && server.write_all(bytes).await.is_err() {
                        return;
                    }
                }
                read = server.read(&mut from_server) => {
                    let Ok(read @ 1..) = read else { return };
                    answers.extend_from_slice(&from_server[..read]);
                    while let Some(answer) = self.next_answer(&mut answers) {
                        if !self.swallows() && client.write_all(&answer).await.is_err() {
                            return;
                        }
                    }
                }
                changed = self.mode.changed() => {
                    if changed.is_err() || self.spoilt {
                        return;
                    }
                }
            }
        }
    }

    fn swallows(&mut self) -> bool {
        let swallows = match &*self.mode.borrow() {
            Mode::Pass => false,
            Mode::Silent => true,
            Mode::SilentFor(client_id) => *client_id == self.client_id,
        };
        if swallows {
            self.swallowed.fetch_add(1, Ordering::Relaxed);
            self.spoilt = true;
        }
        swallows
    }

    /// A whole answer, with the address replaced: both are of one length.
    fn next_answer(&self, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
        let head: [u8; 4] = buffer.get(..4)?.try_into().ok()?;
        let length = 4 + usize::try_from(u32::from_be_bytes(head)).ok()?;
        if buffer.len() < length {
            return None;
        }
        let mut answer: Vec<u8> = buffer.drain(..length).collect();
        let (theirs, ours) = &self.addresses;
        for at in 0..answer.len().saturating_sub(theirs.len() - 1) {
            if answer[at..].starts_with(theirs) {
                answer[at..at + ours.len()].copy_from_slice(ours);
            }
        }
        Some(answer)
    }
}

/// Length, API key, version, number of the request, then the client's id with its length.
fn client_id(request: &[u8]) -> Option<String> {
    let length = usize::from(u16::from_be_bytes([*request.get(12)?, *request.get(13)?]));
    String::from_utf8(request.get(14..14 + length)?.to_vec()).ok()
}
