//! A TCP proxy between one kind of service and one server. It can refuse, cut, fall silent (a
//! half-open connection), let nothing back (a reply that never comes), be slow, and let a request
//! of a kind through and lose its reply. Every fault counts how often it bit.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::broadcast,
};

/// What a link does to all that comes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Pass,
    /// Connections are cut and new ones closed at once.
    Refuse,
    /// Bytes of both sides are read and thrown away: nobody hears that the other is gone.
    Silent,
    /// Requests pass, replies do not.
    OneWay,
}

/// Requests whose reply can be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// PostgreSQL's answer to COMMIT.
    Commit,
    /// Redis's answer to EVALSHA.
    Script,
    /// Kafka's answer to Produce.
    Produce,
    /// Kafka's answer to `OffsetCommit`.
    OffsetCommit,
}

impl Reply {
    /// Whether bytes from a client begin such a request.
    fn begins(self, bytes: &[u8]) -> bool {
        match self {
            // A simple query, as sqlx sends it: `Q`, length, text.
            Self::Commit => {
                bytes.first() == Some(&b'Q')
                    && bytes
                        .get(5..11)
                        .is_some_and(|text| text.eq_ignore_ascii_case(b"COMMIT"))
            }
            Self::Script => bytes.windows(7).take(64).any(|word| word == b"EVALSHA"),
            Self::Produce => bytes.get(4..6) == Some(&[0, 0]),
            Self::OffsetCommit => bytes.get(4..6) == Some(&[0, 8]),
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Commit => 1,
            Self::Script => 2,
            Self::Produce => 3,
            Self::OffsetCommit => 4,
        }
    }

    fn of(code: u8) -> Option<Self> {
        [
            Self::Commit,
            Self::Script,
            Self::Produce,
            Self::OffsetCommit,
        ]
        .into_iter()
        .find(|reply| reply.code() == code)
    }
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    mode: AtomicU8,
    delay_ms: AtomicU64,
    lose: AtomicU8,
    lose_left: AtomicU64,
    bites: AtomicU64,
    cut: broadcast::Sender<()>,
}

/// The proxy.
#[derive(Debug)]
pub struct Link {
    shared: Arc<Shared>,
    port: u16,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

impl Link {
    /// A link to a port of this machine.
    ///
    /// # Errors
    /// No port is free.
    pub async fn to(port: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let own = listener.local_addr()?.port();
        let (cut, _) = broadcast::channel(1);
        let shared = Arc::new(Shared {
            target: SocketAddr::from(([127, 0, 0, 1], port)),
            mode: AtomicU8::new(0),
            delay_ms: AtomicU64::new(0),
            lose: AtomicU8::new(0),
            lose_left: AtomicU64::new(0),
            bites: AtomicU64::new(0),
            cut,
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            shared,
            port: own,
            accepting,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How often any fault bit since the start.
    #[must_use]
    pub fn bites(&self) -> u64 {
        self.shared.bites.load(Ordering::SeqCst)
    }

    /// Changes what it does.
    pub fn set(&self, mode: Mode) {
        self.shared.mode.store(code(mode), Ordering::SeqCst);
        if mode == Mode::Refuse {
            self.cut();
        }
    }

    /// Each chunk of bytes waits for so long.
    pub fn delay(&self, delay: Duration) {
        let ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.shared.delay_ms.store(ms, Ordering::SeqCst);
    }

    /// The next `times` requests of a kind are forwarded, and the connection is cut when the
    /// answer comes.
    pub fn lose(&self, reply: Reply, times: u64) {
        self.shared.lose.store(reply.code(), Ordering::SeqCst);
        self.shared.lose_left.store(times, Ordering::SeqCst);
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        // No receiver means that there is no connection to cut.
        if let Ok(cut) = self.shared.cut.send(()) {
            self.shared
                .bites
                .fetch_add(u64::try_from(cut).unwrap_or(0), Ordering::SeqCst);
        }
    }

    /// Back to doing nothing.
    pub fn heal(&self) {
        self.lose(Reply::Commit, 0);
        self.delay(Duration::ZERO);
        self.set(Mode::Pass);
    }
}

fn code(mode: Mode) -> u8 {
    match mode {
        Mode::Pass => 0,
        Mode::Refuse => 1,
        Mode::Silent => 2,
        Mode::OneWay => 3,
    }
}

impl Shared {
    fn is(&self, mode: Mode) -> bool {
        self.mode.load(Ordering::SeqCst) == code(mode)
    }

    fn bit(&self) {
        self.bites.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether this request is one whose reply is to be lost now.
    fn loses(&self, bytes: &[u8]) -> bool {
        if self.lose_left.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let wanted = Reply::of(self.lose.load(Ordering::SeqCst));
        wanted.is_some_and(|reply| reply.begins(bytes))
            && self
                .lose_left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                })
                .is_ok()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if shared.is(Mode::Refuse) {
            shared.bit();
            continue;
        }
        let shared = Arc::clone(&shared);
        let mut cut = shared.cut.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                _ = cut.recv() => {}
                _ = connect(client, &shared) => {}
            }
        });
    }
}

/// What both directions of a connection know.
#[derive(Default)]
struct Connection {
    /// The next answer is lost, and the connection with it.
    losing: AtomicBool,
    /// Bytes were thrown away: it can't go on when the link is healed.
    spoilt: AtomicBool,
}

async fn connect(mut client: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut server = TcpStream::connect(shared.target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let connection = Connection::default();
    let up = async {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = from_client.read(&mut buffer).await?;
            if read == 0 || !passes(shared, &connection, false).await {
                return Ok::<(), std::io::Error>(());
            }
            if shared.is(Mode::Silent) {
                continue;
            }
            if shared.loses(&buffer[..read]) {
                connection.losing.store(true, Ordering::SeqCst);
            }
            to_server.write_all(&buffer[..read]).await?;
        }
    };
    let down = async {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = from_server.read(&mut buffer).await?;
            if read == 0 || !passes(shared, &connection, true).await {
                return Ok::<(), std::io::Error>(());
            }
            if connection.losing.load(Ordering::SeqCst) {
                // The server has answered, so it is done; nobody will hear of it.
                shared.bit();
                return Ok(());
            }
            if shared.is(Mode::Silent) || shared.is(Mode::OneWay) {
                continue;
            }
            to_client.write_all(&buffer[..read]).await?;
        }
    };
    tokio::select! {
        ended = up => ended,
        ended = down => ended,
    }
}

/// Waits as long as the link is slow; notes bytes that will be thrown away. `false`: the
/// connection has lost bytes and the link is healed, so it ends.
async fn passes(shared: &Shared, connection: &Connection, down: bool) -> bool {
    let delay = shared.delay_ms.load(Ordering::SeqCst);
    if delay > 0 {
        shared.bit();
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    if shared.is(Mode::Silent) || (down && shared.is(Mode::OneWay)) {
        shared.bit();
        connection.spoilt.store(true, Ordering::SeqCst);
        return true;
    }
    !connection.spoilt.load(Ordering::SeqCst)
}
