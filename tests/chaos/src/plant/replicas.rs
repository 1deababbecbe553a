//! The replicas of a plant: one gateway, and two of each service of ours behind the links of its kind.

use std::path::Path;

use anyhow::Context;
use cli::{servers::free_port, services::ServiceName};

use super::{Links, links::through, settings};
use crate::{link::Link, service::Replica};

/// All of them, none started.
pub(super) fn all(
    program: &Path,
    logs: &Path,
    database_url: &str,
    redis_url: &str,
    links: &[Links],
) -> anyhow::Result<Vec<Replica>> {
    let program = program
        .canonicalize()
        .with_context(|| format!("{} is not built", program.display()))?;
    let gateway = free_port()?;
    let payments = [free_port()?, free_port()?];
    let shared = settings::shared(logs, gateway, payments[0]);
    let make = |name: String, service: ServiceName, port: u16| {
        let mut variables: Vec<(String, String)> = shared
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        let listen = (
            service.listen_variable().to_owned(),
            format!("127.0.0.1:{port}"),
        );
        variables.push(listen);
        if let Some(links) = links.iter().find(|links| links.service == service) {
            let through = |url: &str, link: &Link| through(url, link.port());
            variables.extend([
                (
                    "DATABASE_URL".to_owned(),
                    through(database_url, &links.postgres),
                ),
                ("REDIS_URL".to_owned(), through(redis_url, &links.redis)),
                (
                    "KAFKA_BROKERS".to_owned(),
                    format!("127.0.0.1:{}", links.kafka.port()),
                ),
            ]);
        }
        Replica::new(
            name,
            service,
            format!("http://127.0.0.1:{port}"),
            &program,
            logs,
            variables,
        )
    };
    let mut all = vec![make("gateway".into(), ServiceName::GatewaySim, gateway)];
    for (number, payment) in payments.into_iter().enumerate() {
        all.push(make(
            format!("order-{}", number + 1),
            ServiceName::Order,
            free_port()?,
        ));
        all.push(make(
            format!("payment-{}", number + 1),
            ServiceName::Payment,
            payment,
        ));
        all.push(make(
            format!("stock-{}", number + 1),
            ServiceName::Stock,
            free_port()?,
        ));
    }
    Ok(all)
}
