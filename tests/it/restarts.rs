//! Replicas are replaced one by one while buyers order: nobody notices (P13).

use std::{
    collections::HashMap,
    io::ErrorKind,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use cli::http_client::HttpClient;
use http::Method;
use serde_json::json;
use tests::{Options, World, api, wait_for, world::SHOP_KEY};

const CLIENTS: usize = 8;

/// The replicas that a balancer would send requests to.
#[derive(Clone, Default)]
struct Replicas(Arc<Mutex<Vec<String>>>);

impl Replicas {
    fn change(&self, change: impl FnOnce(&mut Vec<String>)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn all(&self) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.clone()
    }
}

/// What a client has seen.
#[derive(Default)]
struct Seen {
    orders: usize,
    /// Connections that were refused, after which another replica was asked.
    refused: usize,
    failures: Vec<String>,
}

fn is_refused(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<std::io::Error>()
            .map(std::io::Error::kind)
    };
    error
        .chain()
        .any(|cause| kind(cause) == Some(ErrorKind::ConnectionRefused))
}

/// Orders one after the other on keep-alive connections, turning from replica to replica; tries
/// again only when a connection is refused.
async fn buy(client: usize, replicas: Replicas, enough: Arc<AtomicBool>) -> Seen {
    let mut seen = Seen::default();
    let mut connections: HashMap<String, HttpClient> = HashMap::new();
    let mut turn = client;
    while !enough.load(Ordering::Relaxed) {
        let key = format!("roll-{client}-{}", seen.orders + seen.failures.len());
        let body = Bytes::from(api::order(&key, &[("ROLL", 1)]).to_string());
        loop {
            turn += 1;
            let all = replicas.all();
            let url = &all[turn % all.len()];
            let Ok(new) = HttpClient::new(url, Some(SHOP_KEY)) else {
                panic!("{url}")
            };
            let http = connections.entry(url.clone()).or_insert(new);
            let path = "/v1/orders";
            match http
                .send(Method::POST, path, Some(&key), Some(body.clone()))
                .await
            {
                Ok(answer) if answer.status == 201 => seen.orders += 1,
                Ok(answer) => {
                    let text = String::from_utf8_lossy(&answer.body);
                    seen.failures.push(format!("{}: {text}", answer.status));
                }
                Err(error) if is_refused(&error) => {
                    seen.refused += 1;
                    continue;
                }
                Err(error) => seen.failures.push(format!("{url}: {error:#}")),
            }
            break;
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_of_two_replicas_under_load_fails_no_request() {
    let mut world = World::with(Options {
        order_replicas: Some(2),
        ..Options::default()
    })
    .await;
    world
        .operator()
        .put_sku("ROLL", 1_000_000, &json!({}))
        .await;
    let (replicas, enough) = (Replicas::default(), Arc::new(AtomicBool::new(false)));
    replicas.change(|all| all.extend(world.order.iter().map(|order| order.url.clone())));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| tokio::spawn(buy(client, replicas.clone(), enough.clone())))
        .collect();
    for _ in 0..2 {
        let orders = world.count("select count(*) from orders").await;
        wait_for("some orders", || async {
            let now = world.count("select count(*) from orders").await;
            (now > orders + 50).then_some(())
        })
        .await;
        world.start_order();
        world.ready().await;
        let new = world.order.last().map(|order| order.url.clone());
        replicas.change(|all| all.extend(new));
        let old = world.order.remove(0);
        let url = old.url.clone();
        let begun = platform::clock::monotonic();
        old.stop().await;
        let took = begun.elapsed();
        eprintln!("a replica under load ended in {took:?}");
        assert!(took < platform::shutdown::GRACE, "{took:?}");
        replicas.change(|all| all.retain(|known| *known != url));
    }
    enough.store(true, Ordering::Relaxed);
    let mut total = Seen::default();
    for client in clients {
        match client.await {
            Ok(seen) => {
                total.orders += seen.orders;
                total.refused += seen.refused;
                total.failures.extend(seen.failures);
            }
            Err(error) => panic!("{error}"),
        }
    }
    eprintln!(
        "{} orders, {} connections refused, {} failures",
        total.orders,
        total.refused,
        total.failures.len()
    );
    assert!(total.failures.is_empty(), "{:?}", total.failures);
    let orders = world.count("select count(*) from orders").await;
    assert_eq!(usize::try_from(orders).ok(), Some(total.orders));
    world.settled().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_service_ends_within_its_grace_and_readiness_goes_first() {
    let mut world = World::start().await;
    world.operator().put_sku("END", 100, &json!({})).await;
    for number in 0..20 {
        let body = api::order(&format!("c-{number}"), &[("END", 1)]);
        api::accepted(&world.shop().decide(&format!("end-{number}"), &body).await);
    }
    let order = world.order.remove(0);
    let url = order.url.clone();
    order.begin();
    let probe = tests::Api::new(&url, "");
    let answer = probe.try_send(Method::GET, "/readyz", None, None).await;
    match answer {
        Ok(answer) => assert_eq!(answer.status, 503, "it still serves, and is not ready"),
        Err(error) => panic!("readiness must go before the listener does: {error:#}"),
    }
    let services = [
        ("order", Some(order)),
        ("payment", world.payment.take()),
        ("stock", world.stock.take()),
    ];
    for (name, service) in services {
        let Some(service) = service else {
            panic!("{name} does not run")
        };
        let begun = platform::clock::monotonic();
        service.stop().await;
        let took = begun.elapsed();
        eprintln!("{name} ended in {took:?}");
        assert!(
            took < platform::shutdown::GRACE + Duration::from_secs(1),
            "{name}: {took:?}"
        );
    }
    world.end().await;
}
