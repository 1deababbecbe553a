//! Serving HTTP/1.1 with every bound written down: connections, headers, idle time, and the end.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body, extract::Request};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::rt::{TokioIo, TokioTimer};
use platform::Shutdown;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tower::ServiceExt;

/// The most connections at once; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 10_000;

/// The most bytes that hyper buffers of a request's head: a longer one is 431.
const HEAD_MAX: usize = 16 * 1024;

/// The most headers of a request: more are 431.
const HEADERS_MAX: usize = 64;

/// How long a connection may idle, and how long a request's head may take to arrive.
const HEAD_WITHIN: Duration = Duration::from_secs(30);

/// How long requests in flight may take once shutdown has begun.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

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

/// Serves until shutdown begins, then closes the listener, finishes the requests in flight and
/// returns; what is not finished after 5 s is cut.
pub(crate) async fn serve(listener: TcpListener, router: Router, shutdown: Shutdown) {
    let connections = Shutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = tokio::select! {
            () = shutdown.begun() => break,
            place = Arc::clone(&places).acquire_owned() => place,
        };
        let stream = tokio::select! {
            () = shutdown.begun() => break,
            accepted = listener.accept() => accepted,
        };
        match stream {
            Ok((stream, _)) => {
                let (router, stopping) = (router.clone(), connections.clone());
                connections.spawn(async move {
                    serve_connection(stream, router, stopping).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of file descriptors, or the peer has gone: the listener itself is sound.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    drop(listener);
    connections.begin();
    if !connections.finished(FINISH_WITHIN).await {
        tracing::warn!("requests in flight were cut at shutdown");
    }
}

async fn serve_connection(stream: TcpStream, router: Router, stopping: Shutdown) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "nodelay could not be set");
    }
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let router = router.clone();
        async move {
            let response = router.oneshot(request.map(Body::new)).await;
            response.map_err(|never: Infallible| never)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service);
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
