//! Proxies in front of PostgreSQL: one that swallows answers to COMMIT, one that can be shut. The
//! second is also in `services/stock/tests/it/support/door.rs`: the suites of two packages share no
//! code (`docs/decisions/0004`), and the package `tests`, which has a proxy for all servers, imports
//! this one.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// Splits a URL into what precedes the address, the address, and what follows it.
fn parts(url: &str) -> (String, String, String) {
    let at = url
        .find('@')
        .map_or_else(|| url.find("//").unwrap() + 2, |at| at + 1);
    let end = at + url[at..].find('/').unwrap();
    (
        url[..at].to_owned(),
        url[at..end].to_owned(),
        url[end..].to_owned(),
    )
}

async fn listen(url: &str) -> (TcpListener, String, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (before, target, after) = parts(url);
    let own = format!("{before}{}{after}", listener.local_addr().unwrap());
    (listener, target, own)
}

/// Which COMMITs are lost, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lose {
    /// The answers to the first so many.
    First(usize),
    /// Of each two one, so many in all: by turns the answer and the COMMIT itself.
    EachSecond(usize),
}

/// Forwards everything; of some COMMITs it loses the answer, or the COMMIT, with the connection.
pub(crate) struct SwallowCommits {
    pub(crate) url: String,
    lost: Arc<AtomicUsize>,
}

/// What becomes of a COMMIT.
enum Fate {
    Answered,
    Unanswered,
    Dropped,
}

impl Lose {
    fn fate(self, seen: &AtomicUsize, lost: &AtomicUsize) -> Fate {
        let number = seen.fetch_add(1, Ordering::Relaxed);
        let (chosen, times) = match self {
            Self::First(times) => (true, times),
            Self::EachSecond(times) => (number.is_multiple_of(2), times),
        };
        let before = lost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
            (chosen && n < times).then_some(n + 1)
        });
        match (self, before) {
            (_, Err(_)) => Fate::Answered,
            (Self::EachSecond(_), Ok(before)) if !before.is_multiple_of(2) => Fate::Dropped,
            (_, Ok(_)) => Fate::Unanswered,
        }
    }
}

impl SwallowCommits {
    pub(crate) async fn start(url: &str, lose: Lose) -> Self {
        let (listener, target, url) = listen(url).await;
        let lost = Arc::new(AtomicUsize::new(0));
        let counters = Arc::new((AtomicUsize::new(0), lost.clone()));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (target, counters) = (target.clone(), counters.clone());
                tokio::spawn(async move {
                    let server = TcpStream::connect(target).await.unwrap();
                    let (seen, lost) = counters.as_ref();
                    swallow(client, server, || lose.fate(seen, lost)).await;
                });
            }
        });
        Self { url, lost }
    }

    pub(crate) fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }
}

async fn swallow(mut client: TcpStream, mut server: TcpStream, fate: impl Fn() -> Fate) {
    let (mut from_client, mut from_server) = (vec![0; 65536], vec![0; 65536]);
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => {
                let Ok(read @ 1..) = read else { return };
                let data = &from_client[..read];
                let commits = data.windows(7).any(|window| window == b"COMMIT\0");
                let fate = if commits { fate() } else { Fate::Answered };
                if matches!(fate, Fate::Dropped) || server.write_all(data).await.is_err() {
                    return;
                }
                if matches!(fate, Fate::Unanswered) {
                    // the server's answer comes, so the transaction is committed; nobody hears it
                    let _ = server.read(&mut from_server).await;
                    return;
                }
            }
            read = server.read(&mut from_server) => {
                let Ok(read @ 1..) = read else { return };
                if client.write_all(&from_server[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Forwards everything while it is open; shut, it cuts what is open and refuses what comes.
pub(crate) struct Door {
    pub(crate) url: String,
    open: watch::Sender<bool>,
}

impl Door {
    pub(crate) async fn start(url: &str) -> Self {
        let (listener, target, url) = listen(url).await;
        let (open, watched) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (target, mut watched) = (target.clone(), watched.clone());
                if !*watched.borrow() {
                    continue;
                }
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(target).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = watched.wait_for(|open| !*open) => {}
                    }
                });
            }
        });
        Self { url, open }
    }

    pub(crate) fn shut(&self) {
        self.open.send_replace(false);
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }
}
