//! A proxy that can be shut. `crates/messaging/tests/it/proxy.rs` has the same for its own suite: the
//! suites of two packages share no code (`docs/decisions/0004`), and the package `tests`, which has a
//! proxy for all servers, imports this one.

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// Forwards everything while it is open; shut, it cuts what is open and takes nothing that comes.
pub(crate) struct Door {
    pub(crate) url: String,
    open: watch::Sender<bool>,
}

impl Door {
    /// In front of the server of a URL that names its port.
    pub(crate) async fn start(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (_, rest) = url.split_once("://").unwrap();
        let (server, _) = rest.split_once('/').unwrap_or((rest, ""));
        let (_, target) = server.rsplit_once('@').unwrap_or(("", server));
        let own = listener.local_addr().unwrap().to_string();
        let (url, target) = (url.replacen(target, &own, 1), target.to_owned());
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
