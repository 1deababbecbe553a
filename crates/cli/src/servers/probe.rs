//! Questions that a server answers only when it serves: an open port proves nothing.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const BOUND: Duration = Duration::from_secs(2);

/// Asks Redis for `PING`.
///
/// # Errors
/// What it said instead of `PONG`.
pub async fn redis_answers(address: &str, password: Option<&str>) -> Result<(), String> {
    bounded(async {
        let mut stream = TcpStream::connect(address).await?;
        let mut ask = String::new();
        if let Some(password) = password {
            ask = format!("*2\r\n$4\r\nAUTH\r\n${}\r\n{password}\r\n", password.len());
        }
        ask.push_str("*1\r\n$4\r\nPING\r\n");
        stream.write_all(ask.as_bytes()).await?;
        let expected = if password.is_some() {
            "+OK\r\n+PONG\r\n"
        } else {
            "+PONG\r\n"
        };
        let mut answer = vec![0; expected.len()];
        let mut read = 0;
        // An error is shorter or longer than the expected answer: stop at its line's end.
        while read < answer.len() && !answer[..read].starts_with(b"-") {
            match stream.read(&mut answer[read..]).await? {
                0 => break,
                bytes => read += bytes,
            }
        }
        let said = String::from_utf8_lossy(&answer[..read]).into_owned();
        Ok(if said == expected {
            Ok(())
        } else {
            Err(said.trim().to_owned())
        })
    })
    .await
}

/// Asks a broker for its metadata and finds at least one broker in it. (A KRaft broker answers
/// only when the controller has let it in.) Plain text: this is for the broker that we start.
///
/// # Errors
/// What it said instead.
pub async fn kafka_answers(address: &str) -> Result<(), String> {
    // Metadata, version 1, correlation id 1, no client id, no topics.
    const ASK: [u8; 18] = [0, 0, 0, 14, 0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 0, 0];
    bounded(async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(&ASK).await?;
        let _length = stream.read_i32().await?;
        let correlation = stream.read_i32().await?;
        let brokers = stream.read_i32().await?;
        Ok(if correlation == 1 && brokers > 0 {
            Ok(())
        } else {
            Err(format!("{brokers} brokers"))
        })
    })
    .await
}

async fn bounded<F>(ask: F) -> Result<(), String>
where
    F: Future<Output = std::io::Result<Result<(), String>>>,
{
    match tokio::time::timeout(BOUND, ask).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer".to_owned()),
    }
}
