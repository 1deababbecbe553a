//! Class I: what is written to Redis lives as long as the business wants, and not as long as a
//! server that is short of memory lets it.

use redis::AsyncCommands;
use serde_json::json;
use tests::{Options, World, api};

use super::{count, place_many, private_redis, redis_command, rush};

/// Time to live of every key of the world, by what is in its name.
async fn lifetimes(world: &World) -> Vec<(String, i64)> {
    let read = async {
        let client = redis::Client::open(world.redis_url.as_str())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let pattern = format!("{}:*", world.key_prefix);
        let mut keys: Vec<String> = Vec::new();
        let mut cursor = 0_u64;
        loop {
            let (next, page): (u64, Vec<String>) = redis::cmd("SCAN")
                .arg(cursor)
                .arg("MATCH")
                .arg(&pattern)
                .arg("COUNT")
                .arg(10_000)
                .query_async(&mut connection)
                .await?;
            keys.extend(page);
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        let mut found = Vec::new();
        for key in keys {
            let ttl: i64 = connection.ttl(&key).await?;
            found.push((key, ttl));
        }
        Ok::<_, redis::RedisError>(found)
    };
    match read.await {
        Ok(found) => found,
        Err(error) => panic!("{error}"),
    }
}

/// There is no key that expires: neither stock nor holds nor the buyers' counts do, and limiter keys
/// do not exist yet. So no duplicate marker can run out in mid-sale.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_at_the_gate_has_a_time_to_live_whatever_was_done() {
    let world = World::with(Options {
        gateway_flags: vec!["--gateway-decline-rate=0.3".to_owned()],
        ..Options::default()
    })
    .await;
    let limited = json!({ "per_customer_limit": 1 });
    world.operator().put_sku("LIVES", 100, &limited).await;
    world.operator().put_sku("PLAIN", 100, &json!({})).await;
    place_many(&world, "LIVES", "limited", 60).await;
    place_many(&world, "PLAIN", "plain", 60).await;
    world.settled().await;
    let restock = json!({ "delta": 10, "reason": "restock" });
    for sku in ["LIVES", "PLAIN"] {
        let path = format!("/v1/skus/{sku}/adjustments");
        let answer = world
            .operator()
            .ask(http::Method::POST, &path, Some(sku), Some(&restock))
            .await;
        assert_eq!(answer.status, 201);
    }
    place_many(&world, "PLAIN", "more", 20).await;
    let found = lifetimes(&world).await;
    for part in [":gate:LIVES", ":gate:PLAIN", ":buyers:LIVES"] {
        assert!(
            found.iter().any(|(key, _)| key.contains(part)),
            "{part}: {found:?}"
        );
    }
    let mortal: Vec<_> = found.iter().filter(|(_, ttl)| *ttl != -1).collect();
    assert!(mortal.is_empty(), "{mortal:?}");
    // A buyer who has bought is remembered as long as the sale lasts, by the gate and by PostgreSQL.
    let shop = world.shop();
    let bought = world.count(
        "select min(substr(customer_id, 3)::bigint) from orders o join order_lines l on l.order_id = o.id
         where o.status = 'CONFIRMED' and l.sku = 'LIVES'",
    );
    let body = api::order(&format!("c-{}", bought.await), &[("LIVES", 1)]);
    let answer = shop.decide("again", &body).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["code"].clone()),
        (409, json!("purchase-limit"))
    );
    world.settled().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_throws_keys_away_is_refused_and_unready_when_it_turns_so() {
    let mut redis = private_redis("evicting").await;
    let mut world = World::with(Options {
        redis_url: Some(redis.url()),
        ..Options::default()
    })
    .await;
    world.operator().put_sku("EVICT", 10, &json!({})).await;
    let policy = async |policy: &str| {
        redis_command(&redis.url(), &["CONFIG", "SET", "maxmemory-policy", policy]).await;
    };
    policy("allkeys-lru").await;
    // The one that keeps the gate says so; nothing that was promised is broken.
    let stock = world.stock.as_ref().map(|stock| stock.url.clone());
    let stock = tests::Api::new(&stock.unwrap_or_default(), "");
    tests::wait_for("stock to be unready", || async {
        let answer = stock.send(http::Method::GET, "/readyz", None, None).await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        (answer.status == 503 && text.contains("noeviction")).then_some(())
    })
    .await;
    let statuses = rush(&world.shops(), "EVICT", "meanwhile", 20).await;
    assert_eq!(
        (count(&statuses, 201), count(&statuses, 410)),
        (10, 10),
        "{statuses:?}"
    );
    // One that starts refuses.
    world.start_order();
    let Some(second) = world.order.pop() else {
        panic!("no second service")
    };
    let refused = match second.ended().await {
        Ok(()) => panic!("it ended in order"),
        Err(error) => format!("{error:#}"),
    };
    assert!(refused.contains("noeviction"), "{refused}");
    policy("noeviction").await;
    world.settled().await;
    world.end().await;
    redis.stop().await;
}
