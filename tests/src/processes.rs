//! The services of a world as real processes, which can be killed, stopped, and told by crash points
//! where to die. Needs the binary with crash points:
//! `cargo build --workspace --bins --features tests/failpoints`.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Mutex,
    time::Duration,
};

use bytes::Bytes;
use cli::servers::free_port;
use http::Method;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    Api, Client, World,
    wait::wait_within,
    wait_for,
    world::{OPERATOR_KEY, Running, SHOP_KEY, WEBHOOK_SECRET, private_dir},
};

/// What every binary with crash points says of itself.
const MARKER: &str = "holdfast-failpoint";

/// The binary beside the one of this test.
///
/// # Panics
/// It is not there, or has no crash points.
#[must_use]
pub fn binary() -> PathBuf {
    let here = std::env::current_exe().unwrap_or_default();
    let binary = here
        .ancestors()
        .nth(2)
        .unwrap_or_else(|| Path::new("."))
        .join("holdfast");
    let version = Command::new(&binary).arg("--version").output();
    let said = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    assert!(
        said.is_ok_and(|said| said.contains(MARKER)),
        "{}: build it with `cargo build --workspace --bins --features tests/failpoints`",
        binary.display()
    );
    binary
}

/// One service as a process, at one address through all its lives.
pub struct Service {
    /// What it is called in logs.
    pub name: String,
    /// Where it listens.
    pub url: String,
    binary: PathBuf,
    args: Vec<String>,
    dir: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Service {
    fn child(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.child
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Starts it; its log goes on.
    ///
    /// # Panics
    /// It can't be started, or runs.
    pub fn start(&self) {
        let mut child = self.child();
        assert!(child.is_none(), "{} runs", self.name);
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.join(format!("{}.log", self.name)))
            .and_then(|log| Ok((log.try_clone()?, log)));
        let Ok((out, err)) = log else {
            panic!("{}: no log", self.name)
        };
        let started = Command::new(&self.binary)
            .arg("serve")
            .args(&self.args)
            .env_remove("HOLDFAST_FAILPOINTS")
            .env("HOLDFAST_FAILPOINTS_LOG", self.dir.join("bites"))
            .env(
                "HOLDFAST_LOG",
                "info,librdkafka=warn,rdkafka=warn,sqlx=warn",
            )
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn();
        match started {
            Ok(started) => *child = Some(started),
            Err(error) => panic!("{}: {error}", self.name),
        }
    }

    /// Whether it runs, or why it does not.
    pub fn ended(&self) -> Option<ExitStatus> {
        let mut child = self.child();
        let status = child.as_mut()?.try_wait().ok().flatten()?;
        *child = None;
        Some(status)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(child) = self.child().as_ref()
            && let Ok(pid) = i32::try_from(child.id())
        {
            // It may have ended a moment ago.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Kills it at once.
    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Waits until it has ended by itself; gives how.
    pub async fn gone(&self, bound: Duration) -> ExitStatus {
        let what = format!("{} to end", self.name);
        wait_within(bound, &what, || async { self.ended() }).await
    }

    /// Waits until it is ready.
    pub async fn ready(&self) {
        let api = Api::new(&self.url, "");
        wait_for(&format!("{} to be ready", self.url), || async {
            let asked = api.try_send(Method::GET, "/readyz", None, None);
            let answer = tokio::time::timeout(Duration::from_secs(2), asked).await;
            answer
                .is_ok_and(|answer| answer.is_ok_and(|answer| answer.status == 200))
                .then_some(())
        })
        .await;
    }

    /// Kills it and starts it again.
    pub async fn restart(&self) {
        self.kill();
        self.start();
        self.ready().await;
    }

    /// Says what bites where, in place of what was said before.
    ///
    /// # Panics
    /// It does not run, or does not understand.
    pub async fn arm(&self, setting: &str) {
        let api = Api::new(&self.url, "");
        let body = Some(Bytes::from(setting.to_owned()));
        match api.try_send(Method::POST, "/failpoints", None, body).await {
            Ok(answer) if answer.status == 200 => {}
            Ok(answer) => panic!("{}: {setting}: {}", self.name, answer.status),
            // It died of what it was told before it could say so; the log of bites tells.
            Err(_) if setting.contains("=kill") => {}
            Err(error) => panic!("{}: {setting}: {error:#}", self.name),
        }
    }

    /// The sum of a metric over all series with this text among their labels; 0 when it has none.
    pub async fn metric(&self, name: &str, label: &str) -> f64 {
        let api = Api::new(&self.url, "");
        let Ok(answer) = api.try_send(Method::GET, "/metrics", None, None).await else {
            return 0.0;
        };
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        text.lines()
            .filter(|line| line.starts_with(name) && line.contains(label))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    }
}

/// What is wanted otherwise than usual.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Order services: two when not said.
    pub orders: Option<usize>,
    /// No payment service.
    pub without_payment: bool,
    /// Stock services: one when not said.
    pub stocks: Option<usize>,
    /// Who may lead the relay, by name; everybody when not said.
    pub relays: Option<Vec<&'static str>>,
    /// Another address of PostgreSQL, Redis or Kafka for the services named so: `order`, `payment`,
    /// `stock`; flags such as `--redis-url`, after the others.
    pub flags: BTreeMap<&'static str, Vec<String>>,
}

/// A world whose services are processes.
pub struct Processes {
    /// Its database, keys and topics, and its invariants.
    pub world: World,
    /// `order-0`, `order-1`.
    pub order: Vec<Service>,
    /// `stock-0`.
    pub stock: Vec<Service>,
    /// `payment`.
    pub payment: Option<Service>,
    /// `gateway-sim`.
    pub gateway: Service,
    dir: PathBuf,
}

impl Processes {
    /// Starts them and waits until they work.
    ///
    /// # Panics
    /// They don't.
    pub async fn start(world: World, wanted: &Wanted) -> Self {
        let dir = private_dir("processes");
        let binary = binary();
        let service = |name: &str, kind: &'static str, port: &str, more: &[&str]| {
            let Ok(free) = free_port() else {
                panic!("no free port")
            };
            let mut args = world.flags(kind, &world.database_url);
            if kind == "gateway-sim" {
                args.truncate(1);
            } else {
                let relays = wanted.relays.as_ref();
                let leads = relays.is_none_or(|names| names.contains(&name));
                args.extend(["--relay".to_owned(), leads.to_string()]);
            }
            args.extend([port.to_owned(), format!("127.0.0.1:{free}")]);
            args.extend(more.iter().map(|flag| (*flag).to_owned()));
            args.extend(wanted.flags.get(kind).cloned().unwrap_or_default());
            Service {
                name: name.to_owned(),
                url: format!("http://127.0.0.1:{free}"),
                binary: binary.clone(),
                args,
                dir: dir.clone(),
                child: Mutex::new(None),
            }
        };
        let secret = ["--webhook-secret", WEBHOOK_SECRET];
        let gateway = service("gateway-sim", "gateway-sim", "--gateway-listen", &secret);
        let keys = ["--api-key", SHOP_KEY, "--operator-key", OPERATOR_KEY];
        let order = (0..wanted.orders.unwrap_or(2))
            .map(|number| service(&format!("order-{number}"), "order", "--order-listen", &keys))
            .collect();
        let stock = (0..wanted.stocks.unwrap_or(1))
            .map(|number| service(&format!("stock-{number}"), "stock", "--stock-listen", &[]))
            .collect();
        let more = [&secret[..], &["--gateway-url", &gateway.url]].concat();
        let payment = service("payment", "payment", "--payment-listen", &more);
        let mut processes = Self {
            world,
            order,
            stock,
            payment: (!wanted.without_payment).then_some(payment),
            gateway,
            dir,
        };
        processes.begin().await;
        processes
    }

    async fn begin(&mut self) {
        for service in self.all() {
            service.start();
        }
        for service in self.all() {
            service.ready().await;
        }
        let elsewhere = |service: &Service| Running::elsewhere(&service.url);
        self.world.order = self.order.iter().map(elsewhere).collect();
        self.world.stock = self.stock.first().map(elsewhere);
        self.world.payment = self.payment.as_ref().map(elsewhere);
        self.world.gateway = Some(elsewhere(&self.gateway));
        if !self.stock.is_empty() {
            self.world.gate_open().await;
        }
    }

    /// All services.
    pub fn all(&self) -> impl Iterator<Item = &Service> {
        [&self.gateway]
            .into_iter()
            .chain(&self.order)
            .chain(&self.stock)
            .chain(&self.payment)
    }

    /// Starts what has ended.
    pub async fn revive(&self) {
        for service in self.all() {
            service.ended();
            if service.child().is_none() {
                service.start();
            }
        }
        for service in self.all() {
            service.ready().await;
        }
    }

    /// How often a point has bitten with an action, over all processes and their lives.
    #[must_use]
    pub fn bites(&self, point: &str, action: &str) -> usize {
        let log = std::fs::read_to_string(self.dir.join("bites")).unwrap_or_default();
        let end = format!(" {point} {action}");
        log.lines().filter(|line| line.ends_with(&end)).count()
    }

    /// Waits until a point has bitten once more than `before`.
    pub async fn bitten(&self, point: &str, action: &str, before: usize) {
        let what = format!("{point} to bite ({action})");
        wait_for(&what, || async {
            (self.bites(point, action) > before).then_some(())
        })
        .await;
    }

    /// A client that knows all order services.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.order.iter().map(|order| order.url.as_str()))
    }

    /// Ends all in order, and removes what the test made.
    ///
    /// # Panics
    /// One does not end within 10 s of being told to, or not well.
    pub async fn end(self) {
        for service in self.all() {
            service.signal(Signal::SIGTERM);
        }
        for service in self.all() {
            let status = service.gone(Duration::from_secs(15)).await;
            assert!(status.success(), "{} ended with {status}", service.name);
        }
        self.world.end().await;
        // It stays after a failure, for whoever looks for the reason.
        std::fs::remove_dir_all(&self.dir).ok();
    }
}
