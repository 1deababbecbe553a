//! Our services as processes of this binary: which ones, where they listen, what they are told.

use std::{
    ffi::OsString,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use clap::ValueEnum;
use http::{Method, StatusCode};
use platform::PaymentsMode;

use crate::{
    environment::{self, Variables},
    http_client::HttpClient,
    servers::{
        Entry, Launch, Ports, Process, Role, ServerError, Servers, StateDir, random_secret,
        read_or_create, tail,
    },
};

/// How long a service may take until it is ready.
const READY_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// The services, each `holdfast serve NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum ServiceName {
    /// HTTP API
    Order,
    /// Charges and refunds
    Payment,
    /// Settles, expires, repairs
    Stock,
    /// A stand-in payment provider
    GatewaySim,
}

impl ServiceName {
    /// All, in the order in which they start.
    pub const ALL: [Self; 4] = [Self::GatewaySim, Self::Order, Self::Payment, Self::Stock];

    /// As in `serve`, in `docker-compose.yml` and in file names.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Payment => "payment",
            Self::Stock => "stock",
            Self::GatewaySim => "gateway-sim",
        }
    }

    /// How the binary is called for it, in the state directory. The provider keeps its book there:
    /// a real one forgets no charge because a shop's machine was stopped.
    fn arguments(self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["serve".into(), self.as_str().into()];
        match self {
            Self::GatewaySim => words.extend(["--book-file".into(), "gateway-sim.book".into()]),
            Self::Order | Self::Payment | Self::Stock => {}
        }
        words
    }

    /// The variable that says where it listens.
    #[must_use]
    pub fn listen_variable(self) -> &'static str {
        match self {
            Self::Order => "HOLDFAST_ORDER_LISTEN",
            Self::Payment => "HOLDFAST_PAYMENT_LISTEN",
            Self::Stock => "HOLDFAST_STOCK_LISTEN",
            Self::GatewaySim => "HOLDFAST_GATEWAY_LISTEN",
        }
    }

    /// The variable that says where others find it, when others look for it.
    #[must_use]
    pub fn url_variable(self) -> Option<&'static str> {
        match self {
            Self::Order => Some(environment::HOLDFAST_URL),
            Self::GatewaySim => Some(environment::GATEWAY_URL),
            Self::Payment | Self::Stock => None,
        }
    }

    /// The port it has in `docker-compose.yml`, and where `doctor` looks for it when nothing else
    /// is said.
    #[must_use]
    pub fn default_port(self) -> u16 {
        match self {
            Self::Order => 8080,
            Self::Payment => 8081,
            Self::Stock => 8082,
            Self::GatewaySim => 8090,
        }
    }
}

/// Which services are to run, where, and with which variables.
#[derive(Debug)]
pub struct Plan {
    /// Each with its address.
    pub services: Vec<(ServiceName, SocketAddr)>,
    /// What all of them, and whoever talks to them, are told.
    pub variables: Variables,
}

impl Plan {
    /// The plan for a state directory: addresses from the environment or free ports, secrets from
    /// the environment or random ones that the directory keeps.
    ///
    /// # Errors
    /// The directory can't be written, or an address can't be read.
    pub fn new(dir: &StateDir, servers: &Servers, payments: PaymentsMode) -> anyhow::Result<Self> {
        let state = dir.state();
        let mut services = Vec::new();
        let mut variables = environment::of_servers(servers);
        for service in ServiceName::ALL {
            if service == ServiceName::Payment && payments == PaymentsMode::Upstream {
                continue;
            }
            let address = match state.running(service.as_str()) {
                Some(entry) => entry.address.trim_start_matches("http://").parse()?,
                None => listen_address(dir, service)?,
            };
            variables.insert(service.listen_variable().to_owned(), address.to_string());
            services.push((service, address));
        }
        for (service, address) in &services {
            match service {
                ServiceName::Order => {
                    variables.insert(
                        environment::HOLDFAST_URL.into(),
                        format!("http://{address}"),
                    );
                }
                ServiceName::GatewaySim => {
                    variables.insert(environment::GATEWAY_URL.into(), format!("http://{address}"));
                }
                ServiceName::Payment => {
                    let webhooks = format!("http://{address}/webhooks/gateway");
                    variables.insert(environment::WEBHOOK_URL.into(), webhooks);
                }
                ServiceName::Stock => {}
            }
        }
        let mode = payments
            .to_possible_value()
            .map(|value| value.get_name().to_owned());
        variables.insert(environment::PAYMENTS.into(), mode.unwrap_or_default());
        for name in [
            environment::API_KEY,
            environment::OPERATOR_KEY,
            environment::WEBHOOK_SECRET,
        ] {
            variables.insert(name.to_owned(), secret(dir, name)?);
        }
        Ok(Self {
            services,
            variables,
        })
    }
}

fn listen_address(dir: &StateDir, service: ServiceName) -> anyhow::Result<SocketAddr> {
    if let Ok(given) = std::env::var(service.listen_variable()) {
        return Ok(given.parse()?);
    }
    let file = dir.path().join(format!("{}.port", service.as_str()));
    Ok((Ipv4Addr::LOCALHOST, Ports::Free.choose(&file)?).into())
}

fn secret(dir: &StateDir, name: &str) -> Result<String, ServerError> {
    match std::env::var(name) {
        Ok(given) if !given.is_empty() => Ok(given),
        _ => read_or_create(&dir.path().join(format!("{name}.secret")), random_secret),
    }
}

/// Starts the services that do not run yet and returns when all are ready. Returns the names of
/// those that ran already.
///
/// # Errors
/// One ended or did not become ready in time: its log's last lines.
pub async fn start(
    dir: &StateDir,
    plan: &Plan,
    program: &Path,
) -> Result<Vec<ServiceName>, ServerError> {
    let state = dir.state();
    let mut running = Vec::new();
    let mut fresh = Vec::new();
    for (service, address) in &plan.services {
        if state.running(service.as_str()).is_some() {
            running.push(*service);
            continue;
        }
        let launch = Launch {
            name: service.as_str(),
            program: program.to_owned(),
            args: service.arguments(),
            envs: plan.variables.clone().into_iter().collect(),
            dir: dir.path().to_owned(),
            log: dir.log(service.as_str()),
            account: None,
        };
        let process = launch.start()?;
        let entry = Entry {
            name: service.as_str().to_owned(),
            role: Role::Service,
            identity: process.identity(),
            address: format!("http://{address}"),
            log: launch.log,
        };
        dir.change(|state| state.record(entry.clone()))?;
        fresh.push((entry, process));
    }
    for (entry, process) in &mut fresh {
        wait_ready(entry, process).await?;
    }
    Ok(running)
}

async fn wait_ready(entry: &Entry, process: &mut Process) -> Result<(), ServerError> {
    let begun = platform::clock::monotonic();
    loop {
        let last = match ready(&entry.address).await {
            Ok(()) => return Ok(()),
            Err(said) => said,
        };
        let (name, log) = (entry.name.clone(), entry.log.clone());
        if !process.is_running() {
            let tail = tail(&log, 20);
            return Err(ServerError::Died { name, log, tail });
        }
        if begun.elapsed() > READY_WITHIN {
            let (seconds, tail) = (READY_WITHIN.as_secs(), tail(&log, 20));
            return Err(ServerError::NotReady {
                name,
                seconds,
                last,
                log,
                tail,
            });
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Asks a service whether it is ready.
///
/// # Errors
/// What it said instead.
pub async fn ready(url: &str) -> Result<(), String> {
    let ask = async {
        let mut client = HttpClient::new(url, None)?;
        client.send(Method::GET, "/readyz", None, None).await
    };
    match tokio::time::timeout(ANSWER_WITHIN, ask).await {
        Ok(Ok(answer)) if answer.status == StatusCode::OK => Ok(()),
        Ok(Ok(answer)) => Err(format!(
            "{} {}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        )),
        Ok(Err(error)) => Err(format!("{error:#}")),
        Err(_) => Err("no answer".to_owned()),
    }
}
