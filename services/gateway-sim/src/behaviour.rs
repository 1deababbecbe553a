//! How the provider behaves. Everything random is drawn from the seed and the key, so that each
//! repeat of a request meets the same fate and a run can be repeated.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::book::ChargeRequest;

/// The knobs; `GET /v1/behaviour` shows them.
#[derive(Debug, Clone, Serialize, clap::Args)]
pub struct Behaviour {
    /// Milliseconds before a charge or refund is executed
    #[arg(
        long = "gateway-latency-ms",
        env = "HOLDFAST_GATEWAY_LATENCY_MS",
        default_value_t = 5
    )]
    pub latency_ms: u64,
    /// Further milliseconds, drawn per key from 0 to this
    #[arg(
        long = "gateway-jitter-ms",
        env = "HOLDFAST_GATEWAY_JITTER_MS",
        default_value_t = 0
    )]
    pub jitter_ms: u64,
    /// Share of charges that are declined
    #[arg(
        long = "gateway-decline-rate",
        env = "HOLDFAST_GATEWAY_DECLINE_RATE",
        default_value_t = 0.0
    )]
    pub decline_rate: f64,
    /// Share of the declined whose decline is not final
    #[arg(
        long = "gateway-not-final-rate",
        env = "HOLDFAST_GATEWAY_NOT_FINAL_RATE",
        default_value_t = 0.0
    )]
    pub not_final_rate: f64,
    /// Share of charges and refunds that are executed but whose first answer is withheld
    #[arg(
        long = "gateway-hang-rate",
        env = "HOLDFAST_GATEWAY_HANG_RATE",
        default_value_t = 0.0
    )]
    pub hang_rate: f64,
    /// Milliseconds for which such an answer is withheld
    #[arg(
        long = "gateway-hang-ms",
        env = "HOLDFAST_GATEWAY_HANG_MS",
        default_value_t = 30_000
    )]
    pub hang_ms: u64,
    /// Milliseconds for which the provider says nothing at all about a charge with a late outcome
    #[arg(
        long = "gateway-late-ms",
        env = "HOLDFAST_GATEWAY_LATE_MS",
        default_value_t = 70_000
    )]
    pub late_ms: u64,
    /// Seed of everything random
    #[arg(
        long = "gateway-seed",
        env = "HOLDFAST_GATEWAY_SEED",
        default_value_t = 1
    )]
    pub seed: u64,
    /// Answer 503 to every charge, cancel and refund, and execute none
    #[arg(long = "gateway-down", env = "HOLDFAST_GATEWAY_DOWN", default_value_t = false, action = clap::ArgAction::Set)]
    pub down: bool,
    /// Whether webhooks are sent, when they have an address
    #[arg(long = "gateway-webhooks", env = "HOLDFAST_GATEWAY_WEBHOOKS", default_value_t = true, action = clap::ArgAction::Set)]
    pub webhooks: bool,
    /// Milliseconds between a result and its webhook
    #[arg(
        long = "gateway-webhook-delay-ms",
        env = "HOLDFAST_GATEWAY_WEBHOOK_DELAY_MS",
        default_value_t = 0
    )]
    pub webhook_delay_ms: u64,
    /// How many further times each webhook is sent
    #[arg(
        long = "gateway-webhook-duplicates",
        env = "HOLDFAST_GATEWAY_WEBHOOK_DUPLICATES",
        default_value_t = 0
    )]
    pub webhook_duplicates: u32,
    /// What happens to chosen charges whatever the rates say; the first that matches decides.
    #[arg(skip)]
    pub rules: Vec<Rule>,
}

/// The body of `PUT /v1/behaviour`: what is absent stays as it is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BehaviourChange {
    /// See [`Behaviour::latency_ms`].
    pub latency_ms: Option<u64>,
    /// See [`Behaviour::jitter_ms`].
    pub jitter_ms: Option<u64>,
    /// See [`Behaviour::decline_rate`].
    pub decline_rate: Option<f64>,
    /// See [`Behaviour::not_final_rate`].
    pub not_final_rate: Option<f64>,
    /// See [`Behaviour::hang_rate`].
    pub hang_rate: Option<f64>,
    /// See [`Behaviour::hang_ms`].
    pub hang_ms: Option<u64>,
    /// See [`Behaviour::late_ms`].
    pub late_ms: Option<u64>,
    /// See [`Behaviour::seed`].
    pub seed: Option<u64>,
    /// See [`Behaviour::down`].
    pub down: Option<bool>,
    /// See [`Behaviour::webhooks`].
    pub webhooks: Option<bool>,
    /// See [`Behaviour::webhook_delay_ms`].
    pub webhook_delay_ms: Option<u64>,
    /// See [`Behaviour::webhook_duplicates`].
    pub webhook_duplicates: Option<u32>,
    /// See [`Behaviour::rules`].
    pub rules: Option<Vec<Rule>>,
}

/// The fate of the charges that match; an absent condition matches all.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The payment method, for example `card-declined`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The amount in minor units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount_minor: Option<i64>,
    /// What happens.
    pub outcome: Outcome,
}

/// What a rule does to a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Captured, answered.
    Approve,
    /// Declined for good.
    Decline,
    /// Declined; another attempt may succeed.
    DeclineNotFinal,
    /// Captured, and the first answer withheld.
    Hang,
    /// One minor unit more is captured than was asked for.
    WrongAmount,
    /// Captured, and nobody hears of it for [`Behaviour::late_ms`]: answers, questions, webhooks.
    Late,
    /// Declined for good, and nobody hears of it for as long.
    LateDecline,
}

impl Outcome {
    /// Whether nobody is to hear of it for a while.
    pub(crate) fn is_late(self) -> bool {
        matches!(self, Self::Late | Self::LateDecline)
    }
}

/// A knob is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{knob} must be {range}")]
pub struct InvalidBehaviour {
    /// The knob's name.
    pub knob: &'static str,
    /// What it may be.
    pub range: &'static str,
}

const TEN_MINUTES_MS: u64 = 600_000;

impl Behaviour {
    /// Checks the ranges: rates from 0 to 1, times up to ten minutes.
    ///
    /// # Errors
    /// [`InvalidBehaviour`] with the first knob that is out of its range.
    pub fn validate(&self) -> Result<(), InvalidBehaviour> {
        let rates = [
            ("decline_rate", self.decline_rate),
            ("not_final_rate", self.not_final_rate),
            ("hang_rate", self.hang_rate),
        ];
        for (knob, rate) in rates {
            if !(0.0..=1.0).contains(&rate) {
                return Err(InvalidBehaviour {
                    knob,
                    range: "from 0 to 1",
                });
            }
        }
        let times = [
            ("latency_ms", self.latency_ms),
            ("jitter_ms", self.jitter_ms),
            ("hang_ms", self.hang_ms),
            ("late_ms", self.late_ms),
            ("webhook_delay_ms", self.webhook_delay_ms),
        ];
        for (knob, time) in times {
            if time > TEN_MINUTES_MS {
                return Err(InvalidBehaviour {
                    knob,
                    range: "from 0 to 600000",
                });
            }
        }
        if self.webhook_duplicates > 100 {
            return Err(InvalidBehaviour {
                knob: "webhook_duplicates",
                range: "from 0 to 100",
            });
        }
        if self.rules.len() > 1_000 {
            return Err(InvalidBehaviour {
                knob: "rules",
                range: "at most 1000 rules",
            });
        }
        Ok(())
    }

    /// The behaviour after a change.
    ///
    /// # Errors
    /// [`InvalidBehaviour`]; nothing changes then.
    pub(crate) fn changed(&self, change: BehaviourChange) -> Result<Self, InvalidBehaviour> {
        let next = Self {
            latency_ms: change.latency_ms.unwrap_or(self.latency_ms),
            jitter_ms: change.jitter_ms.unwrap_or(self.jitter_ms),
            decline_rate: change.decline_rate.unwrap_or(self.decline_rate),
            not_final_rate: change.not_final_rate.unwrap_or(self.not_final_rate),
            hang_rate: change.hang_rate.unwrap_or(self.hang_rate),
            hang_ms: change.hang_ms.unwrap_or(self.hang_ms),
            late_ms: change.late_ms.unwrap_or(self.late_ms),
            seed: change.seed.unwrap_or(self.seed),
            down: change.down.unwrap_or(self.down),
            webhooks: change.webhooks.unwrap_or(self.webhooks),
            webhook_delay_ms: change.webhook_delay_ms.unwrap_or(self.webhook_delay_ms),
            webhook_duplicates: change.webhook_duplicates.unwrap_or(self.webhook_duplicates),
            rules: change.rules.unwrap_or_else(|| self.rules.clone()),
        };
        next.validate()?;
        Ok(next)
    }

    /// What happens to a charge.
    pub(crate) fn fate(&self, key: &str, request: &ChargeRequest) -> Outcome {
        let ruled = self.rules.iter().find(|rule| rule.matches(key, request));
        if let Some(rule) = ruled {
            return rule.outcome;
        }
        if self.drawn("decline", key, self.decline_rate) {
            return if self.drawn("not-final", key, self.not_final_rate) {
                Outcome::DeclineNotFinal
            } else {
                Outcome::Decline
            };
        }
        if self.hangs(key) {
            Outcome::Hang
        } else {
            Outcome::Approve
        }
    }

    /// Whether the answer for this key is withheld.
    pub(crate) fn hangs(&self, key: &str) -> bool {
        self.drawn("hang", key, self.hang_rate)
    }

    /// How long a charge or refund takes to be executed.
    pub(crate) fn latency(&self, key: &str) -> Duration {
        let jitter = (u128::from(self.jitter_ms) * u128::from(self.draw("latency", key))) >> 32;
        let jitter = u64::try_from(jitter).unwrap_or(self.jitter_ms);
        Duration::from_millis(self.latency_ms.saturating_add(jitter))
    }

    fn drawn(&self, what: &str, key: &str, rate: f64) -> bool {
        f64::from(self.draw(what, key)) < rate * 4_294_967_296.0
    }

    /// A number that depends on nothing but the seed, the question and the key.
    fn draw(&self, what: &str, key: &str) -> u32 {
        let mut hash = Sha256::new();
        hash.update(self.seed.to_be_bytes());
        hash.update(what.as_bytes());
        hash.update([0]);
        hash.update(key.as_bytes());
        let digest = hash.finalize();
        u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
    }
}

impl Rule {
    fn matches(&self, key: &str, request: &ChargeRequest) -> bool {
        self.key.as_ref().is_none_or(|wanted| wanted == key)
            && self
                .method
                .as_ref()
                .is_none_or(|wanted| wanted == request.method.as_str())
            && self
                .amount_minor
                .is_none_or(|wanted| wanted == request.amount.amount_minor)
    }
}
