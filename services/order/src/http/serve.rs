//! Serving HTTP/1.1 with every bound written down: connections, headers, idle time, and the end.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderValue, header},
};
use futures::FutureExt;
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::rt::{TokioIo, TokioTimer};
use platform::Shutdown;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tower::ServiceExt;

use super::slow::{HeadWithin, PerAddress, Serving};

/// The most connections at once; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 10_000;

/// The most bytes that hyper buffers of a request's head: a longer one is 431.
const HEAD_MAX: usize = 16 * 1024;

/// The most headers of a request: more are 431.
const HEADERS_MAX: usize = 64;

/// How long a connection may idle.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// How long a request's head may take from its first byte on.
const HEAD_WITHIN: Duration = Duration::from_secs(5);

/// How long requests are still taken once shutdown has begun, while readiness is off already: each
/// answer closes its connection, so that no client has a request cut off with an idle connection.
const DRAIN: Duration = Duration::from_secs(1);

/// How long requests in flight may take after that.
const FINISH_WITHIN: Duration = Duration::from_secs(4);

/// Binds an address, or takes the socket that a test has bound.
///
/// # Errors
/// The address can't be bound.
pub(crate) async fn bind(
    address: SocketAddr,
    bound: Option<std::net::TcpListener>,
) -> std::io::Result<TcpListener> {
    match bound {
        Some(listener) => {
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        }
        None => TcpListener::bind(address).await,
    }
}

/// Serves until shutdown begins and for a second longer, then closes the listener, finishes the
/// requests in flight and returns; what is not finished after 4 s more is cut.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    per_address: PerAddress,
    shutdown: Shutdown,
) {
    let connections = Shutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let drained = async {
        shutdown.begun().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::pin!(drained);
    loop {
        let place = tokio::select! {
            () = drained.as_mut() => break,
            place = Arc::clone(&places).acquire_owned() => place,
        };
        let stream = tokio::select! {
            () = drained.as_mut() => break,
            accepted = listener.accept() => accepted,
        };
        let Some((stream, peer)) = accepted(stream).await else {
            continue;
        };
        let Some(counted) = per_address.admit(peer.ip()) else {
            continue;
        };
        let (router, ends) = (router.clone(), (shutdown.clone(), connections.clone()));
        connections.spawn(async move {
            serve_connection(stream, router, ends).await;
            drop((place, counted));
        });
    }
    // Closing the listener resets connections that the kernel has accepted: they are served first.
    while let Some(Ok((stream, _))) = listener.accept().now_or_never() {
        let (router, ends) = (router.clone(), (shutdown.clone(), connections.clone()));
        connections.spawn(serve_connection(stream, router, ends));
    }
    drop(listener);
    connections.begin();
    if !connections.finished(FINISH_WITHIN).await {
        tracing::warn!("requests in flight were cut at shutdown");
    }
}

async fn accepted(
    stream: std::io::Result<(TcpStream, SocketAddr)>,
) -> Option<(TcpStream, SocketAddr)> {
    match stream {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            // Out of file descriptors, or the peer has gone: the listener itself is sound.
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(Duration::from_millis(10)).await;
            None
        }
    }
}

/// Serves a connection: once shutdown begins its next answer is the last, and once stopping begins
/// it is closed as soon as it is idle.
async fn serve_connection(
    stream: TcpStream,
    router: Router,
    (shutdown, stopping): (Shutdown, Shutdown),
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "nodelay could not be set");
    }
    let serving = Serving::default();
    let told = serving.clone();
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (router, shutdown, told) = (router.clone(), shutdown.clone(), told.clone());
        told.turn();
        async move {
            let mut response = router
                .oneshot(request.map(Body::new))
                .await
                .unwrap_or_else(|never: Infallible| match never {});
            if shutdown.has_begun() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            told.turn();
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_MAX)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_MAX)
        .serve_connection(
            TokioIo::new(HeadWithin::new(stream, serving, HEAD_WITHIN)),
            service,
        );
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopping.begun() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    async fn served() -> (SocketAddr, Shutdown, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(async || "hello"));
        let shutdown = Shutdown::new();
        let task = tokio::spawn(serve(
            listener,
            router,
            PerAddress::new(1),
            shutdown.clone(),
        ));
        (address, shutdown, task)
    }

    async fn ask(stream: &mut TcpStream) -> String {
        stream.write_all(REQUEST).await.unwrap();
        let mut answer = vec![0; 4_096];
        let length = stream.read(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    }

    #[tokio::test]
    async fn a_head_that_trickles_is_cut_and_an_idle_connection_is_not() {
        let (address, shutdown, task) = served().await;
        let mut idle = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut idle).await.starts_with("HTTP/1.1 200"));
        let mut slow = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut slow).await.starts_with("HTTP/1.1 200"));
        slow.write_all(&REQUEST[..7]).await.unwrap();
        let begun = tokio::time::Instant::now();
        let cut = tokio::time::timeout(IDLE_MAX / 2, slow.read(&mut [0; 64])).await;
        assert!(matches!(cut, Ok(Ok(0) | Err(_))), "{cut:?}");
        assert!(begun.elapsed() >= HEAD_WITHIN - Duration::from_millis(100));
        assert!(ask(&mut idle).await.starts_with("HTTP/1.1 200"));
        shutdown.begin();
        task.await.unwrap();
    }

    #[tokio::test]
    async fn while_it_ends_each_answer_is_the_last_of_its_connection() {
        let (address, shutdown, task) = served().await;
        let mut kept = TcpStream::connect(address).await.unwrap();
        assert!(!ask(&mut kept).await.contains("connection: close"));
        shutdown.begin();
        assert!(ask(&mut kept).await.contains("connection: close"));
        let mut new = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut new).await.contains("connection: close"));
        task.await.unwrap();
        assert!(TcpStream::connect(address).await.is_err(), "refused");
    }
}
