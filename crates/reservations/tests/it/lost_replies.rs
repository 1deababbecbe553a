//! A script that ran and whose answer was lost: the repeat finds what was done and takes nothing.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use reservations::{Gate, GateConfig, KeepOutcome, ReserveOutcome, SettleOutcome};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::{
    server::PrivateServer,
    support::{SHARD, TestGate, hold, patient, register, sku, wait_for},
};

const NEXT: std::time::Duration = std::time::Duration::from_secs(30);

/// Orders, and calls whose answers are lost: of `reserve` for each of them.
const LOST: usize = 200;

/// Calls of `keep`, and of `commit` or `release`, whose answers are lost.
const SETTLED: usize = 50;

/// Forwards everything; on demand, swallows the answer to a call of a script with the connection.
struct Proxy {
    url: String,
    armed: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
}

impl Proxy {
    async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("redis://{}", listener.local_addr().expect("its address"));
        let (armed, lost) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (arm, count) = (Arc::clone(&armed), Arc::clone(&lost));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", port)).await;
                let server = server.expect("the server behind the proxy");
                tokio::spawn(forward(
                    client,
                    server,
                    Arc::clone(&arm),
                    Arc::clone(&count),
                ));
            }
        });
        Self { url, armed, lost }
    }

    /// The next call of a script is not answered.
    fn arm(&self) {
        self.armed.store(1, Ordering::SeqCst);
    }

    fn lost(&self) -> u64 {
        self.lost.load(Ordering::SeqCst)
    }
}

async fn forward(
    mut client: TcpStream,
    mut server: TcpStream,
    armed: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
) {
    let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
    let mut swallows = false;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(read @ 1..) = read else { return };
                let call = asked[..read].windows(7).any(|word| word == b"EVALSHA");
                swallows |= call && armed.swap(0, Ordering::SeqCst) == 1;
                if server.write_all(&asked[..read]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let Ok(read @ 1..) = read else { return };
                if swallows {
                    lost.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                if client.write_all(&answered[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[tokio::test]
async fn lost_answers_of_every_verb_take_and_give_each_unit_once() {
    let server = PrivateServer::start().await;
    let test = TestGate::on(&server.url()).await;
    let direct = &test.gate;
    let units = i64::try_from(LOST).unwrap();
    direct
        .put_registers(SHARD, &[register("A", 1, 2 * units)])
        .await
        .unwrap();
    let proxy = Proxy::start(server.port()).await;
    let gate = Gate::new(GateConfig {
        key_prefix: test.prefix.clone(),
        ..patient(&proxy.url)
    })
    .unwrap();
    let held = async || direct.snapshot(SHARD).await.unwrap().gates[&sku("A")].held;
    wait_for("the gate through the proxy", async || {
        gate.ping().await.is_ok()
    })
    .await;
    load_scripts(direct).await;
    let holds: Vec<_> = (0..LOST)
        .map(|n| hold(&n.to_string(), &format!("c{n}"), &[("A", 1)]))
        .collect();

    for (n, one) in holds.iter().enumerate() {
        let one = std::slice::from_ref(one);
        proxy.arm();
        // The first call may come to know its own hold by asking again at once.
        let first = gate.reserve(SHARD, 0, one).await[0];
        let known = [ReserveOutcome::Known, ReserveOutcome::NoGate];
        assert!(known.contains(&first), "{n}: {first:?}");
        wait_for("the same hold", async || {
            gate.reserve(SHARD, 0, one).await == [ReserveOutcome::Known]
        })
        .await;
    }
    assert_eq!(proxy.lost(), LOST as u64);
    assert_eq!(held().await, units, "one unit for each order");

    let before = proxy.lost();
    for one in &holds[..SETTLED] {
        let one = std::slice::from_ref(one);
        proxy.arm();
        let _ = gate.keep(SHARD, one, &[], NEXT).await;
        assert!(matches!(
            retried(async || gate.keep(SHARD, one, &[], NEXT).await).await[0],
            KeepOutcome::Kept
        ));
    }
    assert_eq!(proxy.lost() - before, SETTLED as u64);
    assert_eq!(held().await, units);

    let before = proxy.lost();
    for (n, one) in holds.iter().take(SETTLED).enumerate() {
        let one = std::slice::from_ref(one);
        let settle = async || match n % 2 {
            0 => gate.commit(SHARD, one, &[]).await,
            _ => gate.release(SHARD, one, &[]).await,
        };
        proxy.arm();
        let _ = settle().await;
        assert_eq!(retried(&settle).await, [SettleOutcome::Absent]);
        assert_eq!(retried(&settle).await, [SettleOutcome::Absent]);
    }
    assert_eq!(proxy.lost() - before, SETTLED as u64);
    let left = LOST - SETTLED;
    assert_eq!(
        held().await,
        i64::try_from(left).unwrap(),
        "each given back once"
    );
    assert_eq!(direct.snapshot(SHARD).await.unwrap().holds.len(), left);
}

/// The server knows every script: an answer that is lost is that of a call that ran.
async fn load_scripts(direct: &Gate) {
    for (key, released) in [("warm-1", true), ("warm-2", false)] {
        let warm = [hold(key, "w", &[("A", 1)])];
        direct.reserve(SHARD, 0, &warm).await;
        direct
            .keep(SHARD, &warm, &[], NEXT)
            .await
            .expect("a gate that answers");
        let ended = if released {
            direct.release(SHARD, &warm, &[]).await
        } else {
            direct.commit(SHARD, &warm, &[]).await
        };
        ended.expect("a gate that answers");
    }
}

/// Until it is answered: a cut connection is replaced within a moment.
async fn retried<T, E: std::fmt::Debug>(call: impl AsyncFn() -> Result<T, E>) -> T {
    let begun = tokio::time::Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(begun.elapsed().as_secs() < 3, "{error:?}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
