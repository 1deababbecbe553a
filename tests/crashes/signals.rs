//! F1 to F9 and F18: services are killed, stopped and told to end while orders come in.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::sys::signal::Signal;
use tests::{
    Client, Told,
    processes::{Processes, Service, Wanted},
    wait::wait_within,
    wait_for,
};

use super::{put, start};

/// Orders that come in until they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Told>,
}

impl Load {
    fn begin(client: Client, sku: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let (mut told, mut round) = (Told::default(), 0);
            while !stopped.load(Ordering::SeqCst) {
                let name = format!("load-{round}");
                told.place(&client, round, sku, &name, 4).await;
                round += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            told
        });
        Self { stop, task }
    }

    async fn end(self) -> Told {
        self.stop.store(true, Ordering::SeqCst);
        match self.task.await {
            Ok(told) => told,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn finish(processes: Processes, load: Load, what: &str) {
    let mut told = load.end().await;
    eprintln!(
        "{what}: {} orders, {} attempts unanswered",
        told.orders.len(),
        told.unknown
    );
    told.holds(&processes.client(), &processes.world).await;
    processes.world.settled().await;
    processes.end().await;
}

async fn killed() {
    let processes = start(&Wanted::default()).await;
    put(&processes, "KILLED", 120).await;
    let load = Load::begin(processes.client(), "KILLED");
    // The gateway's book is in memory: a provider that forgets is no fault of ours.
    for service in &processes.order {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let begun = platform::clock::monotonic();
        service.restart().await;
        let took = begun.elapsed().as_millis();
        eprintln!("{} killed, ready again after {took} ms", service.name);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    for service in processes.all() {
        if service.name != "gateway-sim" {
            service.signal(Signal::SIGKILL);
        }
    }
    for service in processes.all() {
        if service.name != "gateway-sim" {
            service.gone(Duration::from_secs(30)).await;
        }
    }
    processes.revive().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    finish(processes, load, "killed one by one, then all at once").await;
}

async fn stopped() {
    let wanted = Wanted {
        stocks: Some(2),
        relays: Some(vec!["stock-0", "stock-1"]),
        ..Wanted::default()
    };
    let processes = start(&wanted).await;
    put(&processes, "STOPPED", 120).await;
    let load = Load::begin(processes.client(), "STOPPED");
    let leads = async |service: &Service| service.metric("relay_is_leader", "").await > 0.5;
    let leader = wait_for("a relay to lead", || async {
        for number in 0..2 {
            if leads(&processes.stock[number]).await {
                return Some(number);
            }
        }
        None
    })
    .await;
    let (zombie, other) = (&processes.stock[leader], &processes.stock[1 - leader]);
    zombie.signal(Signal::SIGSTOP);
    let begun = platform::clock::monotonic();
    wait_within(Duration::from_secs(8), "the other to lead", || async {
        leads(other).await.then_some(())
    })
    .await;
    let took = begun.elapsed().as_millis();
    eprintln!(
        "{} stopped: {} leads the relay after {took} ms",
        zombie.name, other.name
    );
    // Past the session's time-out the other has all partitions.
    tokio::time::sleep(Duration::from_secs(12).saturating_sub(begun.elapsed())).await;
    let confirmed = "select count(*) from orders where status = 'CONFIRMED'";
    let before = processes.world.count(confirmed).await;
    wait_for("the other to settle", || async {
        (processes.world.count(confirmed).await > before).then_some(())
    })
    .await;
    zombie.signal(Signal::SIGCONT);
    zombie.ready().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    finish(
        processes,
        load,
        "a consumer and relay that stood still for 12 s",
    )
    .await;
}

async fn rolled() {
    let wanted = Wanted {
        stocks: Some(2),
        ..Wanted::default()
    };
    let processes = start(&wanted).await;
    put(&processes, "ROLLED", 120).await;
    let mut told = Told::default();
    for (number, service) in processes.order.iter().enumerate() {
        let begun = platform::clock::monotonic();
        service.signal(Signal::SIGTERM);
        let name = format!("rolled-{number}");
        let client = processes.client();
        let (status, ()) = tokio::join!(
            service.gone(Duration::from_secs(12)),
            told.place(&client, number, "ROLLED", &name, 20),
        );
        assert!(status.success(), "{}: {status}", service.name);
        let took = begun.elapsed().as_millis();
        eprintln!("{} told to end: gone after {took} ms", service.name);
        service.start();
        service.ready().await;
    }
    // F18: a member comes and goes every 3 s.
    for round in 0..3 {
        let member = &processes.stock[1];
        let name = format!("storm-{round}");
        told.place(&processes.client(), round, "ROLLED", &name, 20)
            .await;
        member.signal(Signal::SIGTERM);
        let status = member.gone(Duration::from_secs(12)).await;
        assert!(status.success(), "{}: {status}", member.name);
        member.start();
        member.ready().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    told.holds(&processes.client(), &processes.world).await;
    processes.world.settled().await;
    processes.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_may_be_killed_stopped_or_rolled_under_load() {
    tokio::join!(killed(), stopped(), rolled());
}
