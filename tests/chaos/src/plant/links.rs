//! The links between each kind of service and each server, and listeners of Kafka that name them.

use cli::{
    servers::{free_port, native},
    services::ServiceName,
};

use crate::link::Link;

/// Kinds of service that have links of their own.
const LINKED: [ServiceName; 3] = [ServiceName::Order, ServiceName::Payment, ServiceName::Stock];

/// The links of one kind of service.
#[derive(Debug)]
pub struct Links {
    /// Whose.
    pub service: ServiceName,
    /// To PostgreSQL.
    pub postgres: Link,
    /// To Redis.
    pub redis: Link,
    /// To Kafka.
    pub kafka: Link,
}

/// Links, and listeners of Kafka that name them: a client that comes through a link is sent back
/// to the link.
pub(super) async fn link(
    postgres: u16,
    redis: u16,
    kafka: &mut native::Kafka,
) -> anyhow::Result<Vec<Links>> {
    let mut links = Vec::new();
    let path = kafka.home().join("server.properties");
    let mut text = std::fs::read_to_string(&path)?;
    for (number, service) in LINKED.into_iter().enumerate() {
        let inner = free_port()?;
        let kafka = Link::to(inner).await?;
        let name = format!("LINK{number}");
        let more = [
            ("listeners=", format!("{name}://127.0.0.1:{inner}")),
            (
                "advertised.listeners=",
                format!("{name}://127.0.0.1:{}", kafka.port()),
            ),
            (
                "listener.security.protocol.map=",
                format!("{name}:PLAINTEXT"),
            ),
        ];
        text = text
            .lines()
            .map(|line| {
                let added = more.iter().find(|(name, _)| line.starts_with(name));
                match added {
                    Some((_, value)) => format!("{line},{value}\n"),
                    None => format!("{line}\n"),
                }
            })
            .collect();
        links.push(Links {
            service,
            postgres: Link::to(postgres).await?,
            redis: Link::to(redis).await?,
            kafka,
        });
    }
    if !text.contains("inter.broker.listener.name") {
        text.push_str("inter.broker.listener.name=PLAINTEXT\n");
    }
    std::fs::write(&path, text)?;
    for _ in 0..2 {
        if let Err(error) = kafka.restart().await {
            eprintln!("once more: {error}");
        } else {
            return Ok(links);
        }
    }
    kafka.restart().await?;
    Ok(links)
}

/// The URL with another port on this machine.
pub(super) fn through(url: &str, port: u16) -> String {
    let Some((before, rest)) = url.rsplit_once("127.0.0.1:") else {
        return url.to_owned();
    };
    let path = rest.find('/').map_or("", |at| &rest[at..]);
    format!("{before}127.0.0.1:{port}{path}")
}
