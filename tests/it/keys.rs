//! One key is one order, for ever and everywhere.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use cli::http_client::Answer;
use contracts::{HoldId, Line, Quantity, Sku};
use domain::{Buyer, Hold, Shard};
use futures::future::join_all;
use reservations::{ReserveOutcome, SettleOutcome};
use serde_json::json;
use tests::{
    Options, World, api,
    proxy::{Fault, Kind, Rule},
    wait::ask_within,
};
use tokio::{sync::Mutex, task::JoinHandle};

#[tokio::test(flavor = "multi_thread")]
async fn one_key_a_hundred_times_at_once_over_two_replicas_is_one_order() {
    let world = World::with(Options {
        order_replicas: Some(2),
        ..Options::default()
    })
    .await;
    world.operator().put_sku("KEY", 100, &json!({})).await;
    let shops = world.shops();
    let body = api::order("c-1", &[("KEY", 1)]);
    // Whether somebody was told that nobody knew, on a machine that has too much to do: then that may
    // have been the one who got the order.
    let unknown = AtomicBool::new(false);
    let answers = join_all((0..100).map(|number| {
        let (shop, body) = (shops[number % 2].clone(), body.clone());
        let unknown = &unknown;
        async move {
            // A twin that is told to wait asks again, as the contract says.
            tests::wait_for("a definite answer", || async {
                let answer = shop.place("the-key", &body).await;
                let unavailable = answer.status == 503;
                unknown.fetch_or(unavailable, Ordering::SeqCst);
                let waits = unavailable
                    || answer.status == 409 && answer.json()["code"] == "request-in-flight";
                assert!(
                    !waits || answer.headers.contains_key("retry-after"),
                    "who is told to wait is told how long"
                );
                (!waits).then_some(answer)
            })
            .await
        }
    }))
    .await;
    let orders: BTreeSet<String> = answers.iter().map(api::accepted).collect();
    assert_eq!(orders.len(), 1, "{orders:?}");
    let bodies: BTreeSet<&[u8]> = answers.iter().map(|answer| &answer.body[..]).collect();
    assert_eq!(bodies.len(), 1, "every answer is the same");
    let new = answers.iter().filter(|answer| !answer.replayed()).count();
    let at_least = usize::from(unknown.into_inner());
    assert_eq!(new.max(at_least), 1, "the order was new to one of them");
    assert_eq!(world.count("select count(*) from orders").await, 1);
    world.settled().await;
    assert_eq!(world.operator().get("/v1/skus/KEY").await["sold"], 1);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_with_another_body_is_refused_in_flight_and_afterwards() {
    let world = World::start().await;
    world.operator().put_sku("BODY", 100, &json!({})).await;
    let shop = world.shop();
    let (one, two) = (
        api::order("c-1", &[("BODY", 1)]),
        api::order("c-1", &[("BODY", 2)]),
    );
    let answers = join_all((0..40).map(|number| {
        let (shop, body) = (shop.clone(), if number % 2 == 0 { &one } else { &two });
        async move { shop.place_until_decided("shared", body).await }
    }))
    .await;
    let accepted: Vec<_> = answers
        .iter()
        .filter(|answer| answer.status == 201)
        .collect();
    let orders: BTreeSet<String> = accepted
        .iter()
        .map(|answer| api::accepted(answer))
        .collect();
    assert_eq!(orders.len(), 1, "{orders:?}");
    for answer in &answers {
        let code = answer.json()["code"].as_str().map(str::to_owned);
        assert!(
            answer.status == 201
                || (answer.status == 422 && code.as_deref() == Some("key-reused"))
                || (answer.status == 409 && code.as_deref() == Some("request-in-flight")),
            "{} {code:?}",
            answer.status
        );
    }
    let won = accepted[0].json()["lines"][0]["quantity"].as_i64();
    let other = if won == Some(1) { &two } else { &one };
    let answer = shop.decide("shared", other).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["code"].as_str()),
        (422, Some("key-reused"))
    );
    world.settled().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_sell_out_an_accepted_key_still_answers_its_201() {
    let world = World::start().await;
    world.operator().put_sku("LAST", 1, &json!({})).await;
    let shop = world.shop();
    let body = api::order("c-1", &[("LAST", 1)]);
    let first = shop.decide("kept", &body).await;
    let order = api::accepted(&first);
    assert_eq!(
        shop.decide("other", &api::order("c-2", &[("LAST", 1)]))
            .await
            .status,
        410
    );
    for _ in 0..3 {
        let again = shop.decide("kept", &body).await;
        assert!(again.replayed());
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        assert_eq!(again.headers["location"], first.headers["location"]);
    }
    // The order moves on; the answer to its key does not.
    world.until(&order, "CONFIRMED").await;
    let again = shop.decide("kept", &body).await;
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    world.settled().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_survives_the_restart_of_every_order_service() {
    let mut world = World::start().await;
    world.operator().put_sku("AGAIN", 10, &json!({})).await;
    let body = api::order("c-1", &[("AGAIN", 1)]);
    let order = api::accepted(&world.shop().decide("restart", &body).await);
    world.order.remove(0).stop().await;
    world.start_order();
    world.ready().await;
    assert_eq!(
        api::accepted(&world.shop().decide("restart", &body).await),
        order
    );
    assert_eq!(world.count("select count(*) from orders").await, 1);
    world.settled().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_stores_nothing_so_the_same_key_may_succeed_later() {
    let world = World::start().await;
    world.operator().put_sku("LATE", 0, &json!({})).await;
    let body = api::order("c-1", &[("LATE", 1)]);
    assert_eq!(world.shop().decide("patient", &body).await.status, 410);
    assert_eq!(world.count("select count(*) from idempotency").await, 0);
    let more = json!({ "delta": 1, "reason": "restock" });
    let path = "/v1/skus/LATE/adjustments";
    let answer = world
        .operator()
        .ask(http::Method::POST, path, Some("more"), Some(&more))
        .await;
    assert_eq!(answer.status, 201);
    // The gate is told a moment later.
    tests::wait_for("the key to succeed", || async {
        (world.shop().decide("patient", &body).await.status == 201).then_some(())
    })
    .await;
    world.settled().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_cancels_nothing_half_way() {
    let world = World::start().await;
    world.operator().put_sku("HANGUP", 200, &json!({})).await;
    let shop = world.shop();
    let sent = join_all((0..200_u64).map(|number| {
        let shop = shop.clone();
        async move {
            let body = api::order(&format!("c-{number}"), &[("HANGUP", 1)]);
            let key = format!("hang-{number}");
            let patience = std::time::Duration::from_micros(number * 150);
            tokio::time::timeout(patience, shop.place(&key, &body))
                .await
                .is_ok()
        }
    }))
    .await;
    assert!(sent.contains(&false), "some clients must have hung up");
    // Whoever hung up asks again and gets an order: its own first one, or a new one.
    for number in 0..200 {
        let body = api::order(&format!("c-{number}"), &[("HANGUP", 1)]);
        tests::wait_for("the retry's answer", || async {
            (shop.place(&format!("hang-{number}"), &body).await.status == 201).then_some(())
        })
        .await;
    }
    assert_eq!(world.count("select count(*) from orders").await, 200);
    assert_eq!(
        world
            .count(
                "select count(*) from pg_stat_activity where datname = current_database()
                 and state like 'idle in transaction%' and state_change < now() - interval '5 s'"
            )
            .await,
        0
    );
    world.settled().await;
    world.end().await;
}

/// Units of `sku` for customer c-1 under a key of the shop.
fn hold(key: &str, sku: &Sku) -> Hold {
    let (Ok(shop), Ok(customer), Ok(quantity)) = ("shop".parse(), "c-1".parse(), Quantity::new(1))
    else {
        panic!("names")
    };
    Hold {
        hold_id: HoldId::derive("shop", "POST /v1/orders", key),
        buyer: Buyer { shop, customer },
        lines: vec![Line {
            sku: sku.clone(),
            quantity,
        }],
    }
}

/// Has the gate forget the hold of a first attempt, as in a rebuild, and give its unit away; `false`
/// when the attempt had ended before.
async fn given_away(world: &World, key: &str, sku: &Sku, first: &JoinHandle<Answer>) -> bool {
    let (gate, shard) = (world.gate_client(), Shard(0));
    let forgotten = tests::wait_for("the first attempt's hold to go, or its end", || async {
        let released = gate.release(shard, &[hold(key, sku)], &[]).await.ok()?;
        let gone = released == [SettleOutcome::Done];
        (gone || first.is_finished()).then_some(gone)
    })
    .await;
    if forgotten {
        let now = platform::clock::now().timestamp_millis();
        let another = hold(&format!("another-{key}"), sku);
        let taken = gate.reserve(shard, now, &[another]).await;
        assert_eq!(taken, [ReserveOutcome::Ok]);
    }
    forgotten
}

/// What a retry is told that the gate refuses while its first attempt is being decided. Nothing when
/// the first attempt had ended before: it has 2 s for all of it, and such a round shows nothing.
async fn beside_its_first_attempt(world: &World, round: usize) -> Option<Answer> {
    let name = format!("UNDECIDED-{round}");
    world.operator().put_sku(&name, 1, &json!({})).await;
    let (shop, body) = (world.shop(), api::order("c-1", &[(&name, 1)]));
    let (Ok(sku), key) = (Sku::parse(&name), format!("undecided-{round}")) else {
        panic!("{name}")
    };
    // The stock row is locked, so that the accept can't decide.
    let locked = async {
        let mut lock = world.store.begin().await?;
        store::stock::lock(&mut lock, std::slice::from_ref(&sku)).await?;
        Ok::<_, store::StoreError>(lock)
    };
    let lock = match locked.await {
        Ok(lock) => lock,
        Err(error) => panic!("{error}"),
    };
    let first = tokio::spawn({
        let (shop, body, key) = (shop.clone(), body.clone(), key.clone());
        async move { shop.place(&key, &body).await }
    });
    let mut told = None;
    if given_away(world, &key, &sku, &first).await {
        told = Some(shop.place(&key, &body).await).filter(|_| !first.is_finished());
    }
    // A server that waited too long for it has ended the transaction itself.
    lock.rollback().await.ok();
    match first.await {
        Ok(answer) if answer.status == 503 => None,
        Ok(answer) => {
            api::accepted(&answer);
            told
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_the_gate_refuses_while_its_first_attempt_is_decided_is_told_to_wait() {
    let world = World::start().await;
    let mut told = None;
    for round in 0..10 {
        let answer = beside_its_first_attempt(&world, round).await;
        // One that was not served in time says nothing either.
        told = answer.filter(|answer| answer.status != 503);
        if told.is_some() {
            break;
        }
    }
    let Some(retry) = told else {
        panic!("no first attempt was still being decided when its retry was answered")
    };
    let text = String::from_utf8_lossy(&retry.body).into_owned();
    assert_eq!(retry.status, 409, "{text}");
    assert_eq!(retry.json()["code"], "request-in-flight");
    assert!(retry.headers.contains_key("retry-after"));
    world.settled().await;
    world.end().await;
}

/// Retries of a key whose COMMIT arrives 4 s late, over a link that keeps what it is given, while the gate
/// refuses the key: nobody waits for the answer any more, and still the order may come. Gives what
/// they were told until it was there; nothing when it did not come, since a server that hears nothing
/// of a transaction for 5 s ends it.
async fn told_until_the_commit_arrives(world: &World, round: usize) -> Option<Vec<Answer>> {
    let name = format!("LATE-{round}");
    world.operator().put_sku(&name, 1, &json!({})).await;
    let (shop, body) = (world.shop(), api::order("c-1", &[(&name, 1)]));
    let (Ok(sku), key) = (Sku::parse(&name), format!("late-{round}")) else {
        panic!("{name}")
    };
    let Some(proxy) = &world.proxy else {
        panic!("no proxy")
    };
    proxy.clear();
    let late = Fault::DelayRequest(Duration::from_secs(4));
    proxy.add(Rule::new(Kind::Commit, late).times(1));
    let first = tokio::spawn({
        let (shop, body, key) = (shop.clone(), body.clone(), key.clone());
        async move { shop.place(&key, &body).await }
    });
    let forgotten = given_away(world, &key, &sku, &first).await;
    let first = match first.await {
        Ok(answer) => answer,
        Err(error) => panic!("{error}"),
    };
    if !forgotten || first.status != 503 {
        return None;
    }
    let told = Mutex::new(Vec::new());
    let asked = ask_within(Duration::from_secs(4), || async {
        let answer = shop.place(&key, &body).await;
        if answer.status == 201 {
            return Ok(());
        }
        told.lock().await.push(answer);
        Err(())
    });
    asked.await.ok().map(|()| told.into_inner())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_refused_nothing_while_the_commit_of_its_first_attempt_may_still_arrive() {
    let world = World::with(Options {
        proxy_order_database: true,
        ..Options::default()
    })
    .await;
    let mut told = None;
    for round in 0..5 {
        told = told_until_the_commit_arrives(&world, round).await;
        if told.is_some() {
            break;
        }
    }
    let Some(told) = told else {
        panic!("no COMMIT arrived late and was carried out")
    };
    assert!(!told.is_empty());
    for retry in &told {
        let text = String::from_utf8_lossy(&retry.body).into_owned();
        assert!(retry.status == 409 || retry.status == 503, "{text}");
        assert!(retry.headers.contains_key("retry-after"), "{text}");
    }
    world.settled().await;
    world.end().await;
}
