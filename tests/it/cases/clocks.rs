//! Class M: time has a zone, settings are judged before they rule, and one order expires once,
//! however many sweep.

use serde_json::{Value, json};
use tests::{Options, World, api, wait_for, world::SHOP_KEY};

use super::{place, place_many, redis_command};

/// Three replicas sweep; the one that led is stopped while a thousand orders fall due together.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_orders_that_fall_due_together_expire_once_over_three_replicas() {
    let mut world = World::with(Options {
        upstream: true,
        ..Options::default()
    })
    .await;
    let Some(leader) = world.stock.take() else {
        panic!("no stock service")
    };
    world.start_stock();
    let second = world.stock.take();
    world.start_stock();
    world.ready().await;
    world.operator().put_sku("DUE", 1_000, &json!({})).await;
    place_many(&world, "DUE", "due", 1_000).await;
    super::make_due(&world).await;
    wait_for("the first orders to expire", || async {
        let expired = "select count(*) from orders where status = 'EXPIRED'";
        (world.count(expired).await > 0).then_some(())
    })
    .await;
    leader.kill();
    world.settled().await;
    for (what, sql) in [
        (
            "ends",
            "select count(*) from order_history where to_status = 'EXPIRED'",
        ),
        (
            "orders",
            "select count(*) from orders where status = 'EXPIRED' and version = 2",
        ),
        (
            "events",
            "select count(*) from outbox where type = 'ORDER_EXPIRED'",
        ),
        (
            "units in events",
            "select sum((data::jsonb ->> 'quantity')::bigint)::bigint from outbox where type = 'STOCK_RELEASED'",
        ),
        ("units", "select on_hand - held - sold from stock"),
    ] {
        assert_eq!(world.count(sql).await, 1_000, "{what}");
    }
    let early = world.count("select count(*) from orders where ended_at < reserved_until");
    assert_eq!(early.await, 0);
    if let Some(second) = second {
        second.stop().await;
    }
    world.end().await;
}

/// The database stands in Seoul, and another session in New York: no time depends on either.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_in_another_zone_changes_no_deadline_and_no_answer() {
    let mut world = World::without_services(Options {
        upstream: true,
        ..Options::default()
    })
    .await;
    let name = world
        .database_url
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_owned();
    world
        .tamper(&format!(
            "alter database {name} set timezone to 'Asia/Seoul'"
        ))
        .await;
    world.start_services().await;
    world.operator().put_sku("ZONE", 10, &json!({})).await;
    let hour = json!({ "reservation_ttl_seconds": 3_600 });
    world.operator().put_sku("HOUR", 10, &hour).await;
    let shop = world.shop();
    for (sku, seconds) in [("ZONE", 600), ("HOUR", 3_600)] {
        let order = place(&shop, sku, "c", sku).await;
        let order = shop.get(&format!("/v1/orders/{order}")).await;
        let time = |field: &str| {
            let text = order[field].as_str().unwrap_or_default();
            assert!(text.ends_with('Z'), "{field}: {order}");
            match chrono::DateTime::parse_from_rfc3339(text) {
                Ok(time) => time,
                Err(error) => panic!("{text}: {error}"),
            }
        };
        let ttl = time("reserved_until") - time("created_at");
        assert_eq!(ttl.num_milliseconds(), seconds * 1_000, "{order}");
        let now = platform::clock::now();
        let apart = (now - time("created_at").to_utc()).num_seconds().abs();
        assert!(apart < 60, "{apart} s from now");
    }
    // A jump of summer time between the two moments: timestamptz knows none.
    let over_the_jump = world.count(
        "select extract(epoch from ('2026-03-08 06:55:00+00'::timestamptz
                + make_interval(secs => 600)) - '2026-03-08 06:55:00+00'::timestamptz)::bigint",
    );
    assert_eq!(over_the_jump.await, 600);
    // Nothing expired at once, and expiry has looked: a witness is gone.
    let at_once = json!({ "reservation_ttl_seconds": 1 });
    world.operator().put_sku("WITNESS", 1, &at_once).await;
    let witness = place(&shop, "witness", "c", "WITNESS").await;
    world.until(&witness, "EXPIRED").await;
    let expired = world.count("select count(*) from orders where status = 'EXPIRED'");
    assert_eq!(expired.await, 1);
    let late = world.count(
        "select floor(extract(epoch from ended_at - reserved_until))::bigint from orders
         where status = 'EXPIRED'",
    );
    assert!(
        (0..60).contains(&late.await),
        "its end is far from its deadline"
    );
    world.consistent().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_column_of_time_has_a_zone() {
    let world = World::without_services(Options::default()).await;
    let naked = world.count(
        "select count(*) from information_schema.columns
         where table_schema = 'public'
           and data_type in ('timestamp without time zone', 'time without time zone', 'date')",
    );
    assert_eq!(naked.await, 0);
    world.end().await;
}

/// A hold time of nothing began to cancel orders elsewhere. Here nothing that is no time starts, and
/// unset is ten minutes.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_time_that_is_none_is_refused_by_name_and_unset_is_ten_minutes() {
    let mut world = World::with(Options {
        without_payment: true,
        ..Options::default()
    })
    .await;
    for ttl in ["0", "-1", "abc", "1000000000", "", "1e3", "600.5"] {
        let flag = format!("--reservation-ttl-seconds={ttl}");
        world.start_order_with(&["--api-key", SHOP_KEY, &flag]);
        let Some(refused) = world.order.pop() else {
            panic!("no service")
        };
        match refused.ended().await {
            Ok(()) => panic!("{ttl:?} was taken"),
            Err(error) => {
                let text = format!("{error:#}");
                assert!(
                    text.contains("HOLDFAST_RESERVATION_TTL_SECONDS"),
                    "{ttl:?}: {text}"
                );
            }
        }
    }
    let operator = world.operator();
    for ttl in [
        json!(0),
        json!(-1),
        json!("abc"),
        json!(1_000_000_000),
        json!(1.5),
    ] {
        let body = json!({ "on_hand": 1, "reservation_ttl_seconds": ttl,
                           "unit_price": { "amount_minor": 1, "currency": "KRW" } });
        let answer = operator
            .ask(http::Method::PUT, "/v1/skus/TTL", None, Some(&body))
            .await;
        let problem: Value = answer.json();
        assert_eq!(answer.status, 422, "{ttl}: {problem}");
        assert!(
            problem.to_string().contains("reservation_ttl_seconds"),
            "{problem}"
        );
    }
    let unset = json!({ "on_hand": 1, "unit_price": { "amount_minor": 1, "currency": "KRW" } });
    let answer = operator
        .ask(http::Method::PUT, "/v1/skus/TTL", None, Some(&unset))
        .await;
    assert_eq!(
        answer.status,
        201,
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
    let order = place(&world.shop(), "ttl", "c", "TTL").await;
    let seconds = format!(
        "select extract(epoch from reserved_until - created_at)::bigint from orders where id = '{order}'"
    );
    assert_eq!(world.count(&seconds).await, 600);
    world.consistent().await;
    world.end().await;
}

/// Thousands expire behind one another while orders go on: the gate is never asked for much at
/// once. 4,000 here.
#[tokio::test(flavor = "multi_thread")]
async fn a_mass_of_expired_orders_is_released_while_orders_go_on_and_stalls_nobody() {
    let mut redis = super::private_redis("mass").await;
    let world = World::with(Options {
        redis_url: Some(redis.url()),
        upstream: true,
        ..Options::default()
    })
    .await;
    world.operator().put_sku("MASS", 10_000, &json!({})).await;
    world.tamper(&overdue("MASS", 4_000)).await;
    let sell = async {
        let mut accepted = 0;
        for number in 0..200 {
            let body = api::order(&format!("c-{number}"), &[("MASS", 1)]);
            let answer = world.shop().decide(&format!("mass-{number}"), &body).await;
            accepted += usize::from(answer.status == 201);
        }
        accepted
    };
    let expire = async {
        let bound = std::time::Duration::from_secs(60);
        tests::wait::wait_within(bound, "all to expire", || async {
            let expired = "select count(*) from orders where status = 'EXPIRED'";
            (world.count(expired).await == 4_000).then_some(())
        })
        .await;
    };
    let (accepted, ()) = tokio::join!(sell, expire);
    assert_eq!(accepted, 200);
    world.consistent().await;
    let stall = microseconds_per_script(&redis.url()).await;
    assert!(stall < 50_000.0, "a script took {stall} us on average");
    let stock = world.operator().get("/v1/skus/MASS").await;
    assert_eq!(
        (&stock["held"], &stock["available"]),
        (&json!(200), &json!(9_800))
    );
    world.end().await;
    redis.stop().await;
}

/// What a script held the server up for. The average: the longest one says on a busy machine when
/// the server was not allowed to run.
async fn microseconds_per_script(url: &str) -> f64 {
    let info = match redis_command(url, &["INFO", "commandstats"]).await {
        redis::Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        redis::Value::VerbatimString { text, .. } => text,
        other => panic!("{other:?}"),
    };
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
    let field = line.and_then(|line| {
        let mut fields = line.split(',');
        fields.find_map(|field| field.strip_prefix("usec_per_call="))
    });
    match field.map(str::parse) {
        Some(Ok(microseconds)) => microseconds,
        other => panic!("{other:?} in {line:?}"),
    }
}

/// So many RESERVED orders whose time is over, written as the accept writes them.
fn overdue(sku: &str, count: usize) -> String {
    format!(
        "begin;
         create temporary table made on commit drop as
             select gen_random_uuid() id, gen_random_uuid() hold, n from generate_series(1, {count}) n;
         insert into idempotency (hold_id, fingerprint, order_id) select hold, '', id from made;
         update stock set held = held + {count} where sku = '{sku}';
         insert into orders (id, hold_id, shop, customer_id, status, total_minor, currency,
                             payment_method, reserved_until, created_at)
         select id, hold, 'shop', 'c-' || n, 'RESERVED', 12900, 'KRW', 'card',
                clock_timestamp() - interval '1 second', clock_timestamp() - interval '1 minute'
         from made;
         insert into order_lines (order_id, sku, quantity, unit_price_minor)
         select id, '{sku}', 1, 12900 from made;
         insert into order_history (order_id, version, to_status, cause, at)
         select id, 1, 'RESERVED', 'accept', clock_timestamp() - interval '1 minute' from made;
         insert into outbox (event_id, topic, key, type, source, aggregate_version, data)
         select gen_random_uuid(), 'orders.v1', id, 'ORDER_RESERVED', '/holdfast/order', 1, '{{}}'
         from made;
         commit;"
    )
}
