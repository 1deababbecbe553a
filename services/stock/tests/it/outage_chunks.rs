//! The end of an outage of ours with many open orders: deadlines move in chunks.

use stock::Expired;

use crate::support::World;

/// Open orders of an hour ago that are due these seconds from now, and an outage since some minutes.
async fn outage_of(world: &World, (from, to): (i32, i32), minutes: i32) {
    world
        .execute(&format!(
            "insert into orders (id, hold_id, shop, customer_id, status, total_minor, currency,
                                 payment_method, reserved_until, created_at)
             select gen_random_uuid(), gen_random_uuid(), 'shop', 'c', 'RESERVED', 1000, 'KRW',
                    'card', clock_timestamp() + n * interval '1 second',
                    clock_timestamp() - interval '1 hour'
             from generate_series({from}, {to}) n;
             create table were as select id, reserved_until from orders;
             insert into outages (id, reason, opened_at)
             values (gen_random_uuid(), 'a test',
                     clock_timestamp() - interval '{minutes} minutes');"
        ))
        .await;
}

/// A sale's worth of open orders: no statement moves all of them.
#[tokio::test]
async fn the_deadlines_of_many_orders_move_in_chunks() {
    let world = World::with_gate().await;
    outage_of(&world, (-2500, 2500), 90).await;
    world
        .execute(
            "create function few() returns trigger language plpgsql as $$
             begin
                 if (select count(*) from changed) > 2000 then
                     raise 'too many at once' using errcode = 'query_canceled';
                 end if;
                 return null;
             end $$;
             create trigger few after update on orders referencing new table as changed
                 for each statement execute function few();",
        )
        .await;
    assert_eq!(world.expire().await, Expired::Orders(vec![]));
    assert_eq!(world.value::<i64>("select moved from outages").await, 5_001);
    assert_eq!(
        world
            .count(
                "orders o join were w using (id), outages x
                 where o.reserved_until - w.reserved_until = x.closed_at - o.created_at"
            )
            .await,
        5_001
    );
}

/// The server fails half-way; another process goes on; a deadline is renewed meanwhile.
#[tokio::test]
async fn deadlines_that_move_in_chunks_move_once_each_and_none_expires_before() {
    let world = World::with_gate().await;
    let mut orders = Vec::new();
    for second in 1..=7 {
        let placed = world
            .place("c", &[("A", 1)], -8.0 + f64::from(second))
            .await;
        orders.push(placed.order);
    }
    world
        .execute(
            "update orders set created_at = created_at - interval '1 hour';
             create table were as select id, reserved_until from orders;
             insert into outages (id, reason, opened_at)
             values (gen_random_uuid(), 'a test', clock_timestamp() - interval '20 minutes');",
        )
        .await;
    let stop = |at: usize| {
        format!(
            "create or replace function fails() returns trigger language plpgsql as $$
             begin
                 if new.id = '{}' then
                     raise 'no' using errcode = 'query_canceled';
                 end if;
                 return new;
             end $$;
             create or replace trigger fails before update on orders
                 for each row execute function fails();",
            orders[at]
        )
    };
    let moved = "orders o join were w using (id) where o.reserved_until <> w.reserved_until";
    let expiry = || world.expiry().with_moved_at_once(2);
    for (fails, have_moved) in [(3, 2), (6, 4)] {
        world.execute(&stop(fails)).await;
        for _ in 0..2 {
            world.all_is_well().await;
            expiry().expire_due_orders().await.unwrap_err();
        }
        assert_eq!(world.count(moved).await, have_moved);
        assert_eq!(world.count("outages where closed_at is null").await, 1);
        assert_eq!(world.count("orders where status <> 'RESERVED'").await, 0);
        // Of the next ones, one gets another deadline, behind all that have moved.
        if fails == 3 {
            let renewed = orders[4];
            world
                .execute(&format!(
                    "drop trigger fails on orders;
                     update orders set reserved_until = reserved_until + interval '1 hour'
                     where id = '{renewed}';
                     update were set reserved_until = reserved_until + interval '1 hour'
                     where id = '{renewed}'"
                ))
                .await;
        }
    }
    world.execute("drop trigger fails on orders").await;
    world.all_is_well().await;
    let none = Expired::Orders(vec![]);
    assert_eq!(expiry().expire_due_orders().await.unwrap(), none);
    let right = "orders o join were w using (id), outages x
                 where o.reserved_until - w.reserved_until = x.closed_at - x.opened_at";
    assert_eq!(world.count(right).await, 7);
    assert_eq!(world.value::<i64>("select moved from outages").await, 7);
    world.assert_invariants().await;
}

/// Each call moves at most forty deadlines. In between a consumer falls silent and comes back.
#[tokio::test]
async fn an_outage_that_comes_and_goes_while_deadlines_move_is_given_back_too() {
    let world = World::with_gate().await;
    outage_of(&world, (-40, 42), 20).await;
    let expiry = world.expiry().with_moved_at_once(2);
    world.all_is_well().await;
    let tick = expiry.expire_due_orders();
    assert_eq!(tick.await.unwrap(), Expired::Paused);
    world
        .execute("update heartbeats set at = clock_timestamp() - interval '15 seconds'")
        .await;
    let tick = expiry.expire_due_orders();
    assert_eq!(tick.await.unwrap(), Expired::Paused);
    let mut last = Expired::Paused;
    for _ in 0..9 {
        world.all_is_well().await;
        last = expiry.expire_due_orders().await.unwrap();
        if last != Expired::Paused {
            break;
        }
    }
    assert_eq!(last, Expired::Orders(vec![]));
    assert_eq!(world.count("outages where closed_at is not null").await, 2);
    let right = "orders o join were w using (id)
                 where o.reserved_until - w.reserved_until
                     = (select sum(closed_at - opened_at) from outages)";
    assert_eq!(world.count(right).await, 83);
}
