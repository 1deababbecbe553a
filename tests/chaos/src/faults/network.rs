//! Links that are slow, silent, cut, or lose one reply.

use std::time::Duration;

use cli::services::ServiceName;
use rand::{RngExt, rngs::StdRng};

use super::{Bite, Site, Window, hold};
use crate::{
    link::{Link, Mode, Reply},
    plant::Links,
};

fn server(links: &Links, number: usize) -> (&'static str, &Link) {
    match number % 3 {
        0 => ("postgresql", &links.postgres),
        1 => ("redis", &links.redis),
        _ => ("kafka", &links.kafka),
    }
}

pub(super) async fn slow_postgres(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let link = &site.plant.links_of(ServiceName::Order)?.postgres;
    let before = link.bites();
    link.delay(Duration::from_millis(100));
    hold(5.0).await;
    link.heal();
    window.heal();
    Ok(Bite::of(
        link.bites() - before,
        "packets that the link held back",
    ))
}

/// For each server, one kind of service finds its connection silent.
pub(super) async fn half_open(
    site: &Site,
    random: &mut StdRng,
    window: &mut Window,
) -> anyhow::Result<Bite> {
    let mut times = Vec::new();
    for number in 0..3 {
        let links = &site.plant.links[random.random_range(0..site.plant.links.len())];
        // Payment has nothing to do with Redis.
        let links = if number == 1 {
            site.plant.links_of(ServiceName::Order)?
        } else {
            links
        };
        let (name, link) = server(links, number);
        let before = link.bites();
        link.set(Mode::Silent);
        hold(4.0).await;
        link.heal();
        link.cut();
        times.push((name, links.service.as_str(), link.bites() - before));
        hold(1.0).await;
    }
    window.heal();
    Ok(all_of(&times, "thrown away or cut by the link"))
}

/// Every one must have bitten.
fn all_of(times: &[(&str, &str, u64)], how: &str) -> Bite {
    let least = times.iter().map(|(.., times)| *times).min().unwrap_or(0);
    let sum: u64 = times.iter().map(|(.., times)| times).sum();
    let list: Vec<String> = times
        .iter()
        .map(|(server, service, times)| format!("{service}-{server} {times}"))
        .collect();
    let times = if least == 0 { 0 } else { sum };
    Bite::of(times, format!("{how}: {}", list.join(", ")))
}

pub(super) async fn partition(
    site: &Site,
    random: &mut StdRng,
    window: &mut Window,
) -> anyhow::Result<Bite> {
    let mut times = Vec::new();
    for number in 0..3 {
        let one_way = random.random_bool(0.5);
        let links = if number == 1 {
            let two = [ServiceName::Order, ServiceName::Stock];
            site.plant.links_of(two[random.random_range(0..2)])?
        } else {
            &site.plant.links[random.random_range(0..site.plant.links.len())]
        };
        let (name, link) = server(links, number);
        let before = link.bites();
        link.set(if one_way { Mode::OneWay } else { Mode::Refuse });
        hold(4.0).await;
        link.heal();
        if one_way {
            link.cut();
        }
        times.push((name, links.service.as_str(), link.bites() - before));
        hold(1.0).await;
    }
    window.heal();
    Ok(all_of(&times, "cut, refused or thrown away by the link"))
}

/// Lets requests of a kind through and loses their replies.
pub(super) async fn lose(
    site: &Site,
    reply: Reply,
    random: &mut StdRng,
    window: &mut Window,
) -> anyhow::Result<Bite> {
    let mut times = 0;
    for links in &site.plant.links {
        let link = match reply {
            Reply::Commit => &links.postgres,
            Reply::Script => &links.redis,
            Reply::Produce | Reply::OffsetCommit => &links.kafka,
        };
        let before = link.bites();
        // A few at a time, so that some retries meet the fault again and some do not.
        for _ in 0..4 {
            link.lose(reply, random.random_range(1..=3));
            hold(0.3).await;
        }
        link.heal();
        times += link.bites() - before;
    }
    window.heal();
    Ok(Bite::of(times, "replies that the links lost"))
}
