//! Clients that are slow on purpose. hyper bounds the whole time from one request to the head of the
//! next, which is how long a connection may idle; a head that has begun gets less.

use std::{
    collections::HashMap,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep},
};

/// Counts the begins and ends of requests: odd while one is being served. Told by the service, read
/// by the stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct Serving(Arc<AtomicU64>);

impl Serving {
    /// A request begins to be served, or has been.
    pub(crate) fn turn(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn turns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How long a client may take nothing of its answer: whoever does not read holds a place and memory.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

/// A stream that fails when a head which has begun is not there within a bound, or when nothing of an
/// answer is taken for [`TAKEN_WITHIN`].
#[derive(Debug)]
pub(crate) struct HeadWithin {
    stream: TcpStream,
    serving: Serving,
    bound: Duration,
    /// [`TAKEN_WITHIN`], but for tests.
    taken_within: Duration,
    /// Runs since the first byte of a head, with the turns by then: the next turn ends it.
    deadline: Option<(u64, Pin<Box<Sleep>>)>,
    /// Runs since nothing more could be written.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl HeadWithin {
    pub(crate) fn new(stream: TcpStream, serving: Serving, bound: Duration) -> Self {
        Self {
            stream,
            serving,
            bound,
            taken_within: TAKEN_WITHIN,
            deadline: None,
            stalled: None,
        }
    }

    /// Fails what has been pending for too long.
    fn taken<T>(
        &mut self,
        cx: &mut Context<'_>,
        done: Poll<std::io::Result<T>>,
    ) -> Poll<std::io::Result<T>> {
        if done.is_ready() {
            self.stalled = None;
            return done;
        }
        let within = self.taken_within;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(within)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(std::io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for HeadWithin {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let turns = self.serving.turns();
        self.deadline.take_if(|(armed, _)| *armed != turns);
        if turns.is_multiple_of(2) && self.deadline.is_none() && buf.filled().len() > before {
            let until = Instant::now() + self.bound;
            self.deadline = Some((turns, Box::pin(tokio::time::sleep_until(until))));
        }
        if read.is_pending()
            && let Some((_, deadline)) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(std::io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for HeadWithin {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.taken(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.taken(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.taken(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Connections per address. This machine's own are not counted: a proxy on it speaks for many.
#[derive(Debug, Clone)]
pub(crate) struct PerAddress {
    /// The most; 0 counts none.
    most: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A connection that counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Option<(PerAddress, IpAddr)>);

impl PerAddress {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            open: Arc::default(),
        }
    }

    /// Counts a connection; `None` when its address has as many as it may.
    pub(crate) fn admit(&self, address: IpAddr) -> Option<Counted> {
        if self.most == 0 || address.to_canonical().is_loopback() {
            return Some(Counted(None));
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= self.most {
            metrics::counter!("connections_refused_total").increment(1);
            return None;
        }
        *count += 1;
        Some(Counted(Some((self.clone(), address))))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Some((of, address)) = self.0.take() else {
            return;
        };
        let mut open = of.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::{body::Body, extract::Request, response::Response};
    use futures::FutureExt;
    use hyper::{body::Incoming, server::conn::http1, service::service_fn};
    use hyper_util::rt::TokioIo;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// A client and what serves it.
    async fn pair(taken_within: Duration) -> (TcpStream, HeadWithin) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, served) = tokio::join!(client, listener.accept());
        let (served, _) = served.unwrap();
        let served = HeadWithin {
            taken_within,
            ..HeadWithin::new(served, Serving::default(), Duration::from_mins(1))
        };
        (client.unwrap(), served)
    }

    #[tokio::test]
    async fn the_connection_of_a_client_that_takes_nothing_of_its_answer_ends() {
        let (mut client, served) = pair(Duration::from_millis(200)).await;
        // More than the kernel takes for a client that does not read.
        let answer = async |_: Request<Incoming>| {
            let body = Body::from(vec![b'x'; 64 << 20]);
            Ok::<_, Infallible>(Response::new(body))
        };
        let connection =
            http1::Builder::new().serve_connection(TokioIo::new(served), service_fn(answer));
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(30), connection).await;
        assert!(matches!(ended, Ok(Err(_))), "{ended:?}");
    }

    #[tokio::test]
    async fn whoever_takes_some_of_an_answer_has_the_whole_time_for_the_next() {
        let (mut client, mut served) = pair(Duration::from_mins(1)).await;
        let piece = vec![b'x'; 1 << 20];
        while let Some(written) = served.write(&piece).now_or_never() {
            written.unwrap();
        }
        assert!(served.stalled.is_some());
        let mut taken = vec![0; 1 << 16];
        let taking = async { while client.read(&mut taken).await.is_ok_and(|read| read > 0) {} };
        tokio::select! {
            written = served.write(&piece) => assert!(written.is_ok(), "{written:?}"),
            () = taking => panic!("the connection ended"),
        }
        assert!(served.stalled.is_none());
    }

    #[test]
    fn an_address_has_so_many_connections_and_this_machine_any_number() {
        let limit = PerAddress::new(2);
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let (first, _second) = (limit.admit(address).unwrap(), limit.admit(address).unwrap());
        assert!(limit.admit(address).is_none());
        assert!(limit.admit("192.0.2.2".parse().unwrap()).is_some());
        drop(first);
        assert!(limit.admit(address).is_some());
        for own in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            let own: IpAddr = own.parse().unwrap();
            let all: Vec<_> = (0..9).map(|_| limit.admit(own)).collect();
            assert!(all.iter().all(Option::is_some));
        }
        assert!(PerAddress::new(0).admit(address).is_some());
    }
}
