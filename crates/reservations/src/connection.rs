//! One multiplexed connection, made when it is first needed and made anew when it breaks.
//!
//! Guarantee: creating it does no I/O, so a service starts while Redis is away. Each new connection
//! reads the server's run id and tells when it changed: a restarted server or another master may
//! have lost writes that it acknowledged (P10). A call whose answer did not come may have been
//! executed; every verb may be repeated.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, FromRedisValue,
    IntoConnectionInfo, Pipeline, ProtocolVersion, ServerErrorKind, aio::MultiplexedConnection,
    io::tcp::TcpSettings,
};
use tokio::{
    sync::{Mutex, watch},
    time::timeout,
};

use crate::{GateConfig, GateError, error::spoils_connection, script::Script};

/// Which server was seen, and how often it turned out to be another one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerSeen {
    /// The `run_id` of the server behind the newest connection.
    pub run_id: Option<Arc<str>>,
    /// How often a new connection met another run id than the one before: each is a reason to ask
    /// for a drift check.
    pub changes: u64,
}

/// What `INFO memory` says that P15 asks about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Safety {
    /// `maxmemory_policy`.
    pub maxmemory_policy: String,
    /// `maxmemory` in bytes; 0 is no limit.
    pub maxmemory_bytes: u64,
    /// `used_memory` in bytes.
    pub used_memory_bytes: u64,
}

impl Safety {
    /// Whether the server keeps what it is told: any other policy throws holds away when memory
    /// is full.
    #[must_use]
    pub fn is_safe(&self) -> bool {
        self.maxmemory_policy == "noeviction"
    }
}

pub(crate) struct Link {
    client: Client,
    call_timeout: Duration,
    connect_timeout: Duration,
    live: ArcSwapOption<MultiplexedConnection>,
    connecting: Mutex<()>,
    server: watch::Sender<ServerSeen>,
}

/// Keys and arguments of a script call.
#[derive(Debug, Default)]
pub(crate) struct Invocation {
    pub(crate) keys: Vec<String>,
    pub(crate) args: Vec<String>,
}

/// What is sent.
#[derive(Clone, Copy)]
enum Request<'a> {
    Command(&'a Cmd),
    Pipeline(&'a Pipeline),
    Script(&'static Script, &'a Invocation),
}

impl Request<'_> {
    async fn send<T: FromRedisValue>(
        self,
        connection: &mut MultiplexedConnection,
    ) -> Result<T, redis::RedisError> {
        match self {
            Self::Command(command) => command.query_async(connection).await,
            Self::Pipeline(commands) => commands.query_async(connection).await,
            Self::Script(script, call) => {
                let by_hash = eval("EVALSHA", script.sha(), call);
                match by_hash.query_async(connection).await {
                    Err(error) if is_unknown_script(&error) => {
                        eval("EVAL", &script.text(), call)
                            .query_async(connection)
                            .await
                    }
                    other => other,
                }
            }
        }
    }
}

impl Link {
    /// No I/O.
    pub(crate) fn new(config: &GateConfig) -> Result<Self, GateError> {
        let info = config
            .url
            .as_str()
            .into_connection_info()
            .map_err(GateError::Url)?;
        let client = Client::open(with_options(info)).map_err(GateError::Url)?;
        Ok(Self {
            client,
            call_timeout: config.call_timeout,
            connect_timeout: config.connect_timeout,
            live: ArcSwapOption::empty(),
            connecting: Mutex::new(()),
            server: watch::Sender::new(ServerSeen::default()),
        })
    }

    pub(crate) fn server(&self) -> watch::Receiver<ServerSeen> {
        self.server.subscribe()
    }

    async fn connection(&self) -> Result<Arc<MultiplexedConnection>, GateError> {
        if let Some(live) = self.live.load_full() {
            return Ok(live);
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(live) = self.live.load_full() {
            return Ok(live);
        }
        let options = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.call_timeout))
            .set_pipeline_buffer_size(256);
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&options)
            .await
            .map_err(GateError::Connect)?;
        let greeting: String = redis::cmd("INFO")
            .arg("server")
            .query_async(&mut connection)
            .await
            .map_err(GateError::Connect)?;
        self.note_server(info_field(&greeting, "run_id"));
        let live = Arc::new(connection);
        self.live.store(Some(Arc::clone(&live)));
        Ok(live)
    }

    fn note_server(&self, run_id: Option<&str>) {
        let changed = self.server.send_if_modified(|seen| {
            if seen.run_id.as_deref() == run_id {
                return false;
            }
            if seen.run_id.is_some() {
                seen.changes += 1;
            }
            seen.run_id = run_id.map(Arc::from);
            true
        });
        if changed {
            tracing::info!(redis.run_id = run_id, "connected to a redis server");
        }
    }

    /// Forgets a connection, unless another has already taken its place.
    fn discard(&self, spoiled: &Arc<MultiplexedConnection>) {
        let current = self.live.load();
        if current
            .as_ref()
            .is_some_and(|live| Arc::ptr_eq(live, spoiled))
        {
            self.live.compare_and_swap(&*current, None);
        }
    }

    /// Runs a request on the connection within the bound. A connection that gave no answer in time
    /// is not trusted again, unless the caller was only in a hurry.
    async fn run<T: FromRedisValue>(
        &self,
        verb: &'static str,
        bound: Duration,
        request: Request<'_>,
    ) -> Result<T, GateError> {
        let mut used = None;
        let result = timeout(bound, async {
            let live = self.connection().await?;
            used = Some(Arc::clone(&live));
            let mut connection = MultiplexedConnection::clone(&live);
            let answer = request.send(&mut connection).await;
            answer.map_err(|source| GateError::Call { verb, source })
        })
        .await;
        let result = result.unwrap_or(Err(GateError::Timeout { verb }));
        if let Some(used) = used {
            let spoiled = match &result {
                Err(GateError::Call { source, .. }) => spoils_connection(source),
                Err(GateError::Timeout { .. }) => bound >= self.call_timeout,
                _ => false,
            };
            if spoiled {
                self.discard(&used);
            }
        }
        result
    }

    pub(crate) async fn query<T: FromRedisValue>(
        &self,
        verb: &'static str,
        command: &Cmd,
    ) -> Result<T, GateError> {
        let bound = self.call_timeout;
        self.run(verb, bound, Request::Command(command)).await
    }

    pub(crate) async fn query_all<T: FromRedisValue>(
        &self,
        verb: &'static str,
        commands: &Pipeline,
    ) -> Result<T, GateError> {
        let bound = self.call_timeout;
        self.run(verb, bound, Request::Pipeline(commands)).await
    }

    /// Calls a script by its hash, and by its text where the server does not know it: that loads it
    /// too, in the same step, so nothing can come in between.
    pub(crate) async fn invoke(
        &self,
        script: &'static Script,
        call: &Invocation,
        bound: Duration,
    ) -> Result<Vec<String>, GateError> {
        let request = Request::Script(script, call);
        let result = self.run(script.name, bound, request).await;
        match result {
            Err(GateError::Call { verb, source })
                if source.code() == Some(crate::script::MALFORMED) =>
            {
                Err(GateError::Refused {
                    verb,
                    detail: source.detail().unwrap_or_default().to_owned(),
                })
            }
            other => other,
        }
    }

    pub(crate) async fn ping(&self) -> Result<(), GateError> {
        let bound = self.connect_timeout.max(self.call_timeout);
        let ping = redis::cmd("PING");
        self.run("ping", bound, Request::Command(&ping)).await
    }

    pub(crate) async fn safety(&self) -> Result<Safety, GateError> {
        let info: String = self.query("info", redis::cmd("INFO").arg("memory")).await?;
        let field = |name: &'static str| {
            info_field(&info, name).ok_or_else(|| GateError::Reply {
                verb: "info",
                detail: format!("no {name}"),
            })
        };
        let bytes = |name: &'static str| {
            field(name)?.parse().map_err(|_| GateError::Reply {
                verb: "info",
                detail: format!("{name} is no number"),
            })
        };
        Ok(Safety {
            maxmemory_policy: field("maxmemory_policy")?.to_owned(),
            maxmemory_bytes: bytes("maxmemory")?,
            used_memory_bytes: bytes("used_memory")?,
        })
    }
}

fn with_options(info: ConnectionInfo) -> ConnectionInfo {
    let tcp = TcpSettings::default().set_nodelay(true);
    // A peer that vanished without a word is noticed while there is something to send.
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(Duration::from_secs(3));
    let settings = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP2);
    info.set_tcp_settings(tcp)
        .set_redis_settings(settings.set_skip_set_lib_name())
}

fn eval(command: &str, script: &str, call: &Invocation) -> Cmd {
    let mut cmd = redis::cmd(command);
    cmd.arg(script).arg(call.keys.len());
    for key in &call.keys {
        cmd.arg(key);
    }
    for arg in &call.args {
        cmd.arg(arg);
    }
    cmd
}

fn is_unknown_script(error: &redis::RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// A field of an `INFO` reply.
fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
}
