//! A TCP proxy between a service and a server that knows where messages end, so that it can lose
//! exactly the answer to a COMMIT, to a script, to a Produce. Each fault counts how often it bit. Kafka's
//! clients are sent back to the proxy (its broker has to name itself as the target is named).

mod frame;
mod kafka;
mod postgres;
mod redis;
mod rules;

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{broadcast, watch},
};

use frame::Stream;
use rules::count;

pub use frame::{Kind, Protocol};
pub use rules::{Fault, Link, LinkBites, Rule, Towards};

/// How connections are ended from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Close,
    Reset,
}

struct Shared {
    protocol: Protocol,
    target: String,
    port: u16,
    /// Connections so far; each has a number.
    accepted: AtomicU64,
    /// Those with smaller numbers are half-open.
    half_open: AtomicU64,
    rules: Mutex<Vec<Arc<Rule>>>,
    link: watch::Sender<Link>,
    bites: LinkBites,
    end: broadcast::Sender<End>,
}

/// The proxy; dropped, it refuses new connections and cuts those it has.
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

impl Proxy {
    /// A proxy on a free port in front of `target` (`host:port`).
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(protocol: Protocol, target: &str) -> std::io::Result<Self> {
        Self::listen(protocol, target, 0).await
    }

    /// The same on a port of one's own choice.
    ///
    /// # Errors
    /// It is taken.
    pub async fn listen(protocol: Protocol, target: &str, port: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            protocol,
            target: target.to_owned(),
            port: address.port(),
            accepted: AtomicU64::new(0),
            half_open: AtomicU64::new(0),
            rules: Mutex::default(),
            link: watch::Sender::new(Link::default()),
            bites: LinkBites::default(),
            end: broadcast::Sender::new(1),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            shared,
            address,
            accepting,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a rule; the first that strikes a request is the one.
    pub fn add(&self, rule: Rule) -> Arc<Rule> {
        let rule = Arc::new(rule);
        self.rules().push(Arc::clone(&rule));
        rule
    }

    /// Takes all rules away.
    pub fn clear(&self) {
        self.rules().clear();
    }

    fn rules(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Rule>>> {
        self.shared
            .rules
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes all connections so. Those that were silent have lost bytes, so they are cut when the
    /// silence ends.
    pub fn set(&self, link: Link) {
        let before = self.shared.link.send_replace(link);
        if link.refusing || (before.silent.is_some() && link.silent != before.silent) {
            self.cut();
        }
    }

    /// How often the faults of the link bit.
    #[must_use]
    pub fn bites(&self) -> &LinkBites {
        &self.shared.bites
    }

    /// Makes the connections that there are silent for ever, as a router does that has lost its memory.
    /// New ones are not.
    pub fn half_open(&self) {
        let accepted = self.shared.accepted.load(Ordering::SeqCst);
        self.shared.half_open.store(accepted, Ordering::SeqCst);
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        // No receiver means that there is no connection to cut.
        let _ = self.shared.end.send(End::Close);
    }

    /// Resets all connections (RST).
    pub fn reset(&self) {
        let _ = self.shared.end.send(End::Reset);
    }

    /// Refuses connections, and cuts those there are; or accepts again.
    pub fn refuse(&self, refusing: bool) {
        self.set(Link {
            refusing,
            ..Link::default()
        });
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if shared.link.borrow().refusing {
            count(&shared.bites.refused);
            continue;
        }
        let (shared, mut end) = (Arc::clone(&shared), shared.end.subscribe());
        let number = shared.accepted.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            let Ok(server) = TcpStream::connect(&shared.target).await else {
                return;
            };
            if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
                return;
            }
            let (from_client, mut to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let wire = Wire {
                shared: &shared,
                number,
                asked: Mutex::default(),
            };
            let ended = tokio::select! {
                how = end.recv() => how.unwrap_or(End::Close),
                () = requests(from_client, to_server, &wire) => return,
                () = replies(from_server, &mut to_client, &wire) => return,
            };
            count(&shared.bites.cut);
            if ended == End::Reset {
                // Closing it then sends RST; a socket that refuses is closed all the same.
                to_client.as_ref().set_zero_linger().ok();
                to_client.forget();
            }
        });
    }
}

/// What both directions of a connection know.
struct Wire<'a> {
    shared: &'a Shared,
    number: u64,
    /// The requests that are not answered yet, and the rules that take answers away.
    asked: Mutex<VecDeque<(Kind, Option<Lost>)>>,
}

impl Wire<'_> {
    fn asked(&self) -> std::sync::MutexGuard<'_, VecDeque<(Kind, Option<Lost>)>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_silent(&self, towards: Towards) -> bool {
        let silent = self.shared.link.borrow().silent;
        self.number < self.shared.half_open.load(Ordering::SeqCst)
            || silent.is_some_and(|silent| silent.includes(towards))
    }
}

struct Lost {
    rule: Arc<Rule>,
    hang: bool,
}

/// Forwards requests until an end, or a request that is to be dropped.
async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, wire: &Wire<'_>) {
    let shared = wire.shared;
    let (mut stream, mut buffer) = (Stream::default(), vec![0; 64 * 1024]);
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => {
                if wire.is_silent(Towards::Server) || wire.is_silent(Towards::Client) {
                    count(&shared.bites.given_up);
                }
                return;
            }
            Ok(read) => stream.push(&buffer[..read]),
        }
        pause(shared).await;
        while let Some((bytes, kind)) = stream.request(shared.protocol) {
            if let Some(kind) = kind {
                let struck = strike(shared, &kind);
                let mut lost = None;
                match struck {
                    Some((Fault::DropRequest, rule)) => return rule.bite(),
                    Some((Fault::DelayRequest(delay), rule)) => {
                        rule.bite();
                        tokio::time::sleep(delay).await;
                    }
                    Some((Fault::SwallowReply, rule)) => lost = Some(Lost { rule, hang: false }),
                    Some((Fault::HangReply, rule)) => lost = Some(Lost { rule, hang: true }),
                    None => {}
                }
                wire.asked().push_back((kind, lost));
            }
            if !forward(&mut to, &bytes, wire, Towards::Server).await {
                return;
            }
        }
    }
}

/// Forwards answers until an end, or an answer that is to be lost.
async fn replies(mut from: OwnedReadHalf, to: &mut OwnedWriteHalf, wire: &Wire<'_>) {
    let shared = wire.shared;
    let (mut stream, mut buffer) = (Stream::default(), vec![0; 64 * 1024]);
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(read) => stream.push(&buffer[..read]),
        }
        pause(shared).await;
        loop {
            let front = wire.asked().front().map(|(kind, _)| kind.clone());
            let Some((mut bytes, ends)) = stream.reply(shared.protocol, front.as_ref()) else {
                break;
            };
            let is_lost = wire.asked().front().is_some_and(|(_, lost)| lost.is_some());
            let answered = match ends {
                Some(_) => wire.asked().pop_front(),
                None => None,
            };
            if shared.protocol == Protocol::Kafka
                && front.as_ref().is_some_and(kafka::tells_address)
            {
                kafka::redirect(&mut bytes, &shared.target, shared.port);
            }
            if let Some((_, Some(lost))) = answered {
                lost.rule.bite();
                if lost.hang {
                    while from.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
                }
                return;
            }
            if !is_lost && !forward(to, &bytes, wire, Towards::Client).await {
                return;
            }
        }
    }
}

fn strike(shared: &Shared, kind: &Kind) -> Option<(Fault, Arc<Rule>)> {
    let rules = shared.rules.lock().unwrap_or_else(PoisonError::into_inner);
    rules
        .iter()
        .find_map(|rule| Some((rule.strikes(kind)?, Arc::clone(rule))))
}

/// The delay of the link, for what came at once.
async fn pause(shared: &Shared) {
    let delay = shared.link.borrow().delay;
    if !delay.is_zero() {
        count(&shared.bites.delayed);
        tokio::time::sleep(delay).await;
    }
}

/// Writes a frame as the link is; `false` when nobody takes it.
async fn forward(to: &mut OwnedWriteHalf, bytes: &[u8], wire: &Wire<'_>, towards: Towards) -> bool {
    let shared = wire.shared;
    let link = *shared.link.borrow();
    if wire.is_silent(towards) {
        count(&shared.bites.silenced);
        return true;
    }
    if link.bytes_per_second.is_some() || link.slice.is_some() {
        count(&shared.bites.slowed);
    }
    if let Some(rate) = link.bytes_per_second {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        tokio::time::sleep(Duration::from_millis(length * 1_000 / rate.max(1))).await;
    }
    for piece in bytes.chunks(link.slice.unwrap_or(usize::MAX).max(1)) {
        if to.write_all(piece).await.is_err() {
            return false;
        }
        tokio::task::yield_now().await;
    }
    true
}
