//! A TCP proxy between a service and a server, that can cut, stall, refuse, and for PostgreSQL
//! lose the reply to a COMMIT or the COMMIT itself. Each fault counts how often it bit.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::broadcast,
};

/// What happens to the next COMMITs.
#[derive(Debug, Default)]
pub struct CommitFaults {
    /// How many COMMITs are forwarded and executed, and whose reply is then swallowed with the
    /// connection.
    pub swallow_reply: AtomicU64,
    /// How many COMMITs never reach the server: the connection is cut before.
    pub drop_request: AtomicU64,
    /// How many bit.
    pub bit: AtomicU64,
}

struct Shared {
    target: String,
    refusing: AtomicBool,
    commits: CommitFaults,
    cut: broadcast::Sender<()>,
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
    pub async fn start(target: &str) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (cut, _) = broadcast::channel(1);
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            refusing: AtomicBool::new(false),
            commits: CommitFaults::default(),
            cut,
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

    /// The faults of COMMITs.
    #[must_use]
    pub fn commits(&self) -> &CommitFaults {
        &self.shared.commits
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        // No receiver means that there is no connection to cut.
        let _ = self.shared.cut.send(());
    }

    /// Refuses connections, and cuts those there are; or accepts again.
    pub fn refuse(&self, refusing: bool) {
        self.shared.refusing.store(refusing, Ordering::SeqCst);
        if refusing {
            self.cut();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if shared.refusing.load(Ordering::SeqCst) {
            continue;
        }
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let mut cut = shared.cut.subscribe();
            tokio::select! {
                _ = cut.recv() => {}
                _ = connect(client, &shared) => {}
            }
        });
    }
}

async fn connect(mut client: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut server = TcpStream::connect(&shared.target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let swallowing = AtomicBool::new(false);
    let up = async {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = from_client.read(&mut buffer).await?;
            if read == 0 {
                return Ok::<(), std::io::Error>(());
            }
            if is_commit(&buffer[..read]) {
                if take(&shared.commits.drop_request) {
                    shared.commits.bit.fetch_add(1, Ordering::SeqCst);
                    return Ok(());
                }
                if take(&shared.commits.swallow_reply) {
                    swallowing.store(true, Ordering::SeqCst);
                }
            }
            to_server.write_all(&buffer[..read]).await?;
        }
    };
    let down = async {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = from_server.read(&mut buffer).await?;
            if read == 0 {
                return Ok::<(), std::io::Error>(());
            }
            // The server has answered COMMIT, so it is committed; nobody will hear of it.
            if swallowing.load(Ordering::SeqCst) {
                shared.commits.bit.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
            to_client.write_all(&buffer[..read]).await?;
        }
    };
    tokio::select! {
        ended = up => ended,
        ended = down => ended,
    }
}

/// A simple query whose text is COMMIT, as sqlx sends it: `Q`, length, text, NUL.
fn is_commit(message: &[u8]) -> bool {
    message.first() == Some(&b'Q')
        && message
            .get(5..11)
            .is_some_and(|text| text.eq_ignore_ascii_case(b"COMMIT"))
}

fn take(counter: &AtomicU64) -> bool {
    counter
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        })
        .is_ok()
}
