//! Whether a cluster keeps what it acknowledges (P15).

use contracts::{Topic, TopicNames};
use platform::{CommonConfig, Environment};
use rdkafka::{
    admin::{AdminClient, AdminOptions, ResourceSpecifier},
    client::DefaultClientContext,
};

use super::{AdminError, REQUEST};
use crate::client;

/// What a service of this configuration refuses to start with: nothing in development, which has
/// one broker. A broker that is away is no reason: the service waits for it anyhow.
pub async fn unsafe_topics(common: &CommonConfig) -> Vec<String> {
    if common.environment != Environment::Production {
        return Vec::new();
    }
    let names = TopicNames::new(&common.topic_suffix);
    match check_safety(&common.kafka_brokers, &names).await {
        Ok(problems) => problems,
        Err(error) => {
            tracing::warn!(%error, "kafka does not answer; its topics are not checked");
            Vec::new()
        }
    }
}

/// What is wrong with the topics for production, one sentence each: a single replica, or an
/// acknowledgement by a single one, loses events with one disk.
///
/// # Errors
/// The broker can't be asked.
pub async fn check_safety(brokers: &str, names: &TopicNames) -> Result<Vec<String>, AdminError> {
    let client: AdminClient<DefaultClientContext> =
        client::admin(brokers).map_err(AdminError::Create)?;
    let topics = Topic::ALL.map(|topic| names.topic(topic));
    let mut problems = Vec::new();
    for topic in &topics {
        let metadata = client
            .inner()
            .fetch_metadata(Some(topic), REQUEST)
            .map_err(AdminError::request("describe topics"))?;
        let partitions = metadata
            .topics()
            .iter()
            .flat_map(|topic| topic.partitions());
        match partitions.map(|partition| partition.replicas().len()).min() {
            None => problems.push(format!(
                "topic {topic} does not exist: run `holdfast topics`"
            )),
            Some(0 | 1) => problems.push(format!("topic {topic} has a single replica")),
            Some(_) => {}
        }
    }
    let wanted: Vec<ResourceSpecifier<'_>> = topics
        .iter()
        .map(|topic| ResourceSpecifier::Topic(topic))
        .collect();
    let options = AdminOptions::new().request_timeout(Some(REQUEST));
    let described = client
        .describe_configs(&wanted, &options)
        .await
        .map_err(AdminError::request("describe topics"))?;
    for (topic, config) in topics.iter().zip(described) {
        // A topic that is missing was named above.
        let Ok(config) = config else { continue };
        let min_insync = config
            .entries
            .iter()
            .find(|entry| entry.name == "min.insync.replicas")
            .and_then(|entry| entry.value.as_deref()?.parse::<u32>().ok());
        if min_insync.is_none_or(|replicas| replicas < 2) {
            problems.push(format!(
                "topic {topic} acknowledges with min.insync.replicas below 2"
            ));
        }
    }
    Ok(problems)
}
