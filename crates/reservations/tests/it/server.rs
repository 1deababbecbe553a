//! A redis-server of a test's own, on a free port, ended with it.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
};

use crate::support::wait_for;

pub(crate) struct PrivateServer {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

/// Below the range from which the kernel lends ports to clients, so that none of them takes it before
/// its server does, or while that is away.
pub(crate) fn free_port() -> u16 {
    (0..200)
        .map(|_| rand::random_range(15_000..32_000))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port")
}

impl PrivateServer {
    pub(crate) async fn start() -> Self {
        Self::start_at(free_port()).await
    }

    pub(crate) async fn start_at(port: u16) -> Self {
        Self::start_with(port, &[]).await
    }

    /// One node that has all slots of a cluster.
    pub(crate) async fn start_cluster() -> Self {
        let server = Self::start_with(free_port(), &["--cluster-enabled", "yes"]).await;
        let mut raw = crate::support::raw(&server.url()).await;
        let _: redis::Value = redis::cmd("CLUSTER")
            .arg(&["ADDSLOTSRANGE", "0", "16383"])
            .query_async(&mut raw)
            .await
            .expect("a server that knows clusters, 7.0 or later");
        wait_for("all slots to be served", async || {
            let info: String = redis::cmd("CLUSTER")
                .arg("INFO")
                .query_async(&mut raw)
                .await
                .expect("cluster info");
            info.contains("cluster_state:ok")
        })
        .await;
        server
    }

    async fn start_with(port: u16, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let child = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
            ])
            .args(["--appendonly", "no", "--dir"])
            .arg(folder.path())
            .args(more)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server must be on PATH");
        let server = Self {
            child,
            port,
            _folder: folder,
        };
        let client = redis::Client::open(server.url()).expect("url");
        wait_for("a private redis-server", async || {
            client.get_multiplexed_async_connection().await.is_ok()
        })
        .await;
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
