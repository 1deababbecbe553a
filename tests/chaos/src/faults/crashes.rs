//! Crash points: places between two stores where a process dies, fails, hangs or waits. They are in
//! builds with the feature `failpoints` alone.

use std::{collections::BTreeMap, time::Duration};

use http::Method;
use rand::{RngExt, rngs::StdRng, seq::SliceRandom};

use bytes::Bytes;
use cli::services::ServiceName;

use super::{Bite, Site, Window, hold, seconds, until};
use crate::{http::Http, service::Replica};

/// The file of bites, beside the logs of the services.
pub const FILE: &str = "bites";
/// Points that are set in one fault.
const AT_ONCE: usize = 5;

/// A process that lives says so in less.
const LIVE_WITHIN: Duration = Duration::from_secs(2);
/// Until it is silent, and from then until it has ended itself: it has 10 s for that.
const BLOCKED_WITHIN: Duration = Duration::from_secs(30);

/// Whose points they are.
const POINTS: &[(&str, ServiceName)] = &[
    ("cp1", ServiceName::Order),
    ("cp2", ServiceName::Order),
    ("cp3", ServiceName::Order),
    ("cp4", ServiceName::Order),
    ("cp5", ServiceName::Order),
    ("cp6", ServiceName::Order),
    ("cp7", ServiceName::Order),
    ("cp8", ServiceName::Order),
    ("cp9", ServiceName::Order),
    ("cp14", ServiceName::Stock),
    ("cp15", ServiceName::Stock),
    ("cp16", ServiceName::Stock),
    ("cp17", ServiceName::Stock),
    ("cp18", ServiceName::Stock),
    ("cp19", ServiceName::Stock),
    ("cp20", ServiceName::Payment),
    ("cp21", ServiceName::Payment),
    ("cp22", ServiceName::Payment),
    ("cp23", ServiceName::Stock),
    ("cp24", ServiceName::Payment),
    ("cp25", ServiceName::Stock),
];

/// The points of the relay, which any process may lead.
const RELAY: &[&str] = &["cp10", "cp11", "cp12", "cp13"];

/// Whether this build has crash points.
pub async fn are_there(replica: &Replica) -> bool {
    let Ok(mut http) = Http::new(&replica.url, "none") else {
        return false;
    };
    let asked = http.send(Method::GET, "/failpoints", None, None).await;
    asked.is_ok_and(|answer| answer.status == 200)
}

/// Sets what is to happen at the points of a process.
///
/// # Errors
/// It does not answer, or does not know them.
pub async fn set(replica: &Replica, rules: &str) -> anyhow::Result<()> {
    let mut http = Http::new(&replica.url, "none")?;
    let body = Some(Bytes::from(rules.to_owned()));
    let answer = http
        .send_within(crate::http::WITHIN, Method::POST, "/failpoints", None, body)
        .await?;
    anyhow::ensure!(
        answer.status < 300,
        "{}: {} for {rules}",
        replica.name,
        answer.text()
    );
    Ok(())
}

/// Bites so far, by point and action.
pub fn bites(site: &Site) -> BTreeMap<String, u64> {
    let path = site.plant.dir.join("logs").join(FILE);
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut bites = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [.., point, action] = words[..] {
            *bites.entry(format!("{point} {action}")).or_insert(0) += 1;
        }
    }
    bites
}

/// Some points at random, each with a random action at one of its next hits, in every process that
/// has it.
pub(super) async fn random(
    site: &Site,
    random: &mut StdRng,
    window: &mut Window,
) -> anyhow::Result<Bite> {
    let mut points: Vec<(&str, Option<ServiceName>)> = POINTS
        .iter()
        .map(|(point, service)| (*point, Some(*service)))
        .chain(RELAY.iter().map(|point| (*point, None)))
        .collect();
    points.shuffle(random);
    let before = bites(site);
    let mut rules: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (point, service) in points.into_iter().take(AT_ONCE) {
        let rule = rule(point, random);
        for replica in &site.plant.replicas {
            let has = service.is_none_or(|service| service == replica.service);
            if has && replica.service != ServiceName::GatewaySim {
                rules.entry(&replica.name).or_default().push(rule.clone());
            }
        }
    }
    for replica in &site.plant.replicas {
        if let Some(rules) = rules.get(replica.name.as_str()) {
            set(replica, &rules.join(";")).await?;
        }
    }
    hold(5.0).await;
    clear(site).await;
    start_again_what_hangs(site).await?;
    window.heal();
    let after = bites(site);
    let new: Vec<String> = after
        .iter()
        .filter(|(bite, times)| before.get(*bite) != Some(times))
        .map(|(bite, times)| format!("{bite} {}", times - before.get(bite).unwrap_or(&0)))
        .collect();
    let sum = |bites: &BTreeMap<String, u64>| bites.values().sum::<u64>();
    let times = sum(&after) - sum(&before);
    Ok(Bite::of(times, new.join(", ")))
}

fn rule(point: &str, random: &mut StdRng) -> String {
    let nth = random.random_range(1..=20);
    let action = match random.random_range(0..10) {
        0..4 => "kill",
        4..7 if point != "cp19" => "err",
        7..8 => "hang",
        _ => "delay(400)",
    };
    format!("{point}={action}@{nth}")
}

/// Every thread of an order service falls asleep in the middle of an answer. Such a process must stop
/// saying that it lives, and end itself, for it neither answers nor dies.
pub(super) async fn blocked(
    site: &Site,
    random: &mut StdRng,
    window: &mut Window,
) -> anyhow::Result<Bite> {
    let number = random.random_range(0..site.plant.of(ServiceName::Order).count().max(1));
    let replica = site.plant.replica(ServiceName::Order, number)?;
    let ended = || replica.ended_by_itself().len();
    let before = ended();
    set(replica, "cp8=block(60000)").await?;
    let silent = until(BLOCKED_WITHIN, || async { !is_live(replica).await }).await;
    let gone = until(BLOCKED_WITHIN, || async { ended() > before }).await;
    window.heal();
    if gone.is_none() {
        replica.kill().await?;
        replica.start().await?;
    }
    replica.ready().await?;
    let times = u64::from(silent.is_some() && gone.is_some());
    let how = format!("{} said nothing, then ended itself", replica.name);
    Ok(Bite::of(times, how)
        .with("livez_fails_s", seconds(silent))
        .with("ended_after_that_s", seconds(gone)))
}

async fn is_live(replica: &Replica) -> bool {
    let Ok(mut http) = Http::new(&replica.url, "none") else {
        return false;
    };
    let asked = http.send_within(LIVE_WITHIN, Method::GET, "/livez", None, None);
    asked.await.is_ok_and(|answer| answer.status == 200)
}

/// A task that hangs for ever is what a watchdog ends the process for; here we do.
async fn start_again_what_hangs(site: &Site) -> anyhow::Result<()> {
    let path = site.plant.dir.join("logs").join(FILE);
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let hanging: Vec<u32> = text
        .lines()
        .filter(|line| line.ends_with(" hang"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse().ok())
        .collect();
    for replica in &site.plant.replicas {
        if replica
            .pid()
            .await
            .is_some_and(|pid| hanging.contains(&pid))
        {
            replica.kill().await?;
            replica.start().await?;
        }
    }
    Ok(())
}

/// No point bites any more.
pub(super) async fn clear(site: &Site) {
    for replica in &site.plant.replicas {
        if replica.service == ServiceName::GatewaySim {
            continue;
        }
        // One that was killed begins without any.
        if let Err(error) = set(replica, "").await {
            eprintln!("{}: {error:#}", replica.name);
        }
    }
}
