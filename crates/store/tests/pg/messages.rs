use std::time::Duration;

use anyhow::Result;
use contracts::ConsumerName;
use store::{
    dead_letters::{self, NewDeadLetter},
    heartbeats, inbox, outbox,
};

use crate::support::{Db, with_db};

fn event(source: &str, id: &str) -> inbox::EventKey {
    (source.to_owned(), id.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_new_once_per_consumer_and_source() {
    with_db(|db| async move {
        let mut tx = db.store.begin().await?;
        let two = [event("/b", "1"), event("/a", "1"), event("/b", "1")];
        let new = inbox::insert(&mut tx, ConsumerName::Stock, &two).await?;
        assert_eq!(new.len(), 2, "the same id of two sources is two events");
        let again = [event("/a", "1"), event("/a", "2")];
        let new = inbox::insert(&mut tx, ConsumerName::Stock, &again).await?;
        assert_eq!(new.into_iter().collect::<Vec<_>>(), [event("/a", "2")]);
        let new = inbox::insert(&mut tx, ConsumerName::Payment, &again).await?;
        assert_eq!(new.len(), 2);
        let known = event("/a", "1");
        assert!(inbox::knows(&mut tx, ConsumerName::Stock, &known).await?);
        assert!(!inbox::knows(&mut tx, ConsumerName::Order, &known).await?);
        tx.commit().await?;
        let mut conn = db.store.conn().await?;
        assert_eq!(
            inbox::prune(&mut conn, Duration::from_secs(3600), 10).await?,
            0
        );
        assert_eq!(inbox::prune(&mut conn, Duration::ZERO, 3).await?, 3);
        assert_eq!(inbox::prune(&mut conn, Duration::ZERO, 3).await?, 2);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_consumers_of_an_event_do_not_wait_for_each_other() {
    with_db(|db| async move {
        let one = [event("/a", "1")];
        let mut stock = db.store.begin().await?;
        assert_eq!(
            inbox::insert(&mut stock, ConsumerName::Stock, &one)
                .await?
                .len(),
            1
        );
        // Were they one key, this would wait for the other's end, and time out.
        let mut payment = db.store.begin().await?;
        let new = inbox::insert(&mut payment, ConsumerName::Payment, &one).await?;
        assert_eq!(new.len(), 1);
        // The same consumer waits, and loses.
        let hasty = db.store_with(|options| options.lock_timeout = Duration::from_millis(100));
        let mut twin = hasty.begin().await?;
        let waits = inbox::insert(&mut twin, ConsumerName::Stock, &one).await;
        assert!(waits.is_err_and(|error| error.is_transient()));
        payment.commit().await?;
        stock.commit().await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_kept_byte_for_byte_and_copied_once() {
    with_db(|db| async move {
        let letter = NewDeadLetter {
            consumer: "stock".to_owned(),
            topic: "payments.v1".to_owned(),
            partition: 3,
            offset: 42,
            key: Some(vec![0, 255]),
            event_type: None,
            source: None,
            event_id: None,
            payload: Some(vec![0, 159, 146, 150]),
            headers: vec![
                ("ce_id".to_owned(), Some(b"x".to_vec())),
                ("binary".to_owned(), Some(vec![0, 1, 254])),
                ("empty".to_owned(), Some(vec![])),
                ("null".to_owned(), None),
            ],
            reason: "header ce_type is missing".to_owned(),
            class: "permanent".to_owned(),
            attempts: 1,
            first_seen: db.store.clock().await?,
            dlq_topic: "payments.v1.holdfast.stock.dlq".to_owned(),
        };
        let mut tx = db.store.begin().await?;
        let twice = [letter.clone(), letter.clone()];
        assert_eq!(dead_letters::insert(&mut tx, &twice).await?, 1);
        tx.commit().await?;

        let mut conn = db.store.conn().await?;
        let listed = dead_letters::list(&mut conn, true, None, 10).await?;
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].letter, letter);
        let copies = outbox::read(&mut conn, 0, &[], 10).await?.rows;
        assert_eq!(copies.len(), 1);
        assert_eq!(copies[0].event_type, outbox::DEAD_LETTER);
        assert_eq!(
            (copies[0].event_id, &copies[0].topic),
            (listed[0].id, &letter.dlq_topic)
        );

        let mut tx = db.store.begin().await?;
        assert!(
            dead_letters::lock_open(&mut tx, listed[0].id)
                .await?
                .is_some()
        );
        dead_letters::mark_redriven(&mut tx, listed[0].id).await?;
        assert!(
            dead_letters::lock_open(&mut tx, listed[0].id)
                .await?
                .is_none()
        );
        tx.commit().await?;
        assert!(
            dead_letters::list(&mut conn, true, None, 10)
                .await?
                .is_empty()
        );
        let after = dead_letters::get(&mut conn, listed[0].id).await?;
        assert!(after.is_some_and(|letter| letter.redriven));

        an_open_one_stays_however_old(&db, letter).await
    })
    .await;
}

async fn an_open_one_stays_however_old(db: &Db, letter: NewDeadLetter) -> Result<()> {
    let mut conn = db.store.conn().await?;
    let mut tx = db.store.begin().await?;
    let open = NewDeadLetter {
        offset: 43,
        ..letter
    };
    assert_eq!(dead_letters::insert(&mut tx, &[open]).await?, 1);
    tx.commit().await?;
    let hour = Duration::from_secs(3600);
    assert_eq!(dead_letters::prune(&mut conn, hour, 10).await?, 0);
    db.run("update dead_letters set at = at - interval '2 hours'")
        .await?;
    assert_eq!(dead_letters::prune(&mut conn, hour, 10).await?, 1);
    assert_eq!(
        dead_letters::list(&mut conn, false, None, 10).await?.len(),
        1
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_is_young_when_it_was_just_renewed() {
    with_db(|db| async move {
        let mut conn = db.store.conn().await?;
        heartbeats::beat(&mut conn, "stock").await?;
        db.run("update heartbeats set at = at - interval '1 hour'")
            .await?;
        heartbeats::beat(&mut conn, "payment").await?;
        let all = heartbeats::all(&mut conn).await?;
        assert_eq!(
            all.iter().map(|beat| &*beat.name).collect::<Vec<_>>(),
            ["payment", "stock"]
        );
        assert!(all[0].age < Duration::from_secs(60) && all[1].age >= Duration::from_secs(3600));
        heartbeats::beat(&mut conn, "stock").await?;
        assert!(heartbeats::all(&mut conn).await?[1].age < Duration::from_secs(60));
        Ok(())
    })
    .await;
}
