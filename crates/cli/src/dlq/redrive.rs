//! `holdfast dlq redrive`: has dead letters handled again by the handler of their consumer, here and
//! not in the running services, each in one transaction. What they lead to outside PostgreSQL is left
//! to the services: the sweep of payments charges, the sweep of holds tells the gate if we can't.

use std::time::Duration;

use contracts::{ConsumerName, Shop};
use domain::deadline::HoldRules;
use messaging::{HandleError, Redriven};
use payment::charge_payments::ChargePayments;
use platform::{HoldConfig, PaymentsMode, Shutdown};
use stock::{SettleOrders, Stock};
use store::{dead_letters, dead_letters::DeadLetter};
use uuid::Uuid;

use super::{Filter, page, report::Report};
use crate::{
    exit::{Exit, Usage},
    output::Format,
    stores::Stores,
};

/// How long the gate may take to be told at the end; the sweep tells it otherwise.
const TELL_WITHIN: Duration = Duration::from_secs(2);

/// Flags of `dlq redrive`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Dead letters; they are taken oldest first
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub ids: Vec<Uuid>,
    /// All that are open
    #[arg(long)]
    pub all: bool,
    /// Which of them
    #[command(flatten)]
    pub filter: Filter,
    /// Say what would become of them, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The system
    #[command(flatten)]
    pub system: System,
    /// table, json or jsonl
    #[arg(long, value_enum, default_value_t)]
    pub output: Format,
}

/// The servers, and those settings of the services that decide what an event does.
#[derive(Debug, clap::Args)]
pub struct System {
    /// PostgreSQL and the gate
    #[command(flatten)]
    pub stores: Stores,
    /// Who writes payments.v1
    #[arg(
        long,
        env = "HOLDFAST_PAYMENTS",
        value_enum,
        default_value = "internal"
    )]
    pub payments: PaymentsMode,
    /// The shop that order requests by Kafka are for
    #[arg(long, env = "HOLDFAST_SHOP", default_value = "shop")]
    pub shop: Shop,
    /// How long holds last
    #[command(flatten)]
    pub holds: HoldConfig,
}

/// Runs the command.
///
/// # Errors
/// A server can't be reached, or there is no such dead letter.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let report = redrive(&args).await?;
    report.print(args.output)?;
    Ok(if report.failed_again == 0 {
        Exit::Done
    } else {
        Exit::Failed
    })
}

/// Redrives, and says what became of each.
///
/// # Errors
/// As [`run`]; what was redriven before stays so.
pub async fn redrive(args: &Args) -> anyhow::Result<Report> {
    let redriver = Redriver::new(&args.system)?;
    let mut report = Report {
        dry_run: args.dry_run,
        ..Report::default()
    };
    let done = if args.all {
        redriver.all(args, &mut report).await
    } else {
        redriver.these(args, &mut report).await
    };
    redriver.end().await;
    match done {
        Ok(()) => Ok(report),
        Err(error) => Err(error.context(format!(
            "it stopped after {} were replayed, {} were done already and {} failed again",
            report.replayed, report.already_done, report.failed_again
        ))),
    }
}

/// The handlers of all consumers, beside the running services.
struct Redriver {
    stock: Stock,
    payments: PaymentsMode,
    shop: Shop,
    rules: HoldRules,
    tasks: Shutdown,
}

impl Redriver {
    fn new(system: &System) -> anyhow::Result<Self> {
        Ok(Self {
            stock: system.stores.stock("holdfast dlq")?,
            payments: system.payments,
            shop: system.shop.clone(),
            rules: system.holds.rules(HoldRules::parse).map_err(Usage)?,
            tasks: Shutdown::new(),
        })
    }

    /// All open ones. One that fails again is not met a second time: the pages go by id.
    async fn all(&self, args: &Args, report: &mut Report) -> anyhow::Result<()> {
        let mut after = None;
        loop {
            let (found, last) = page(&self.stock.store, true, &args.filter, after).await?;
            for letter in found {
                let redriven = self.one(&letter, args.dry_run).await?;
                report.add(letter.id, redriven);
            }
            if last.is_none() {
                return Ok(());
            }
            after = last;
        }
    }

    /// Those that were named; nothing happens when one of them is not there.
    async fn these(&self, args: &Args, report: &mut Report) -> anyhow::Result<()> {
        let mut ids = args.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        let mut letters = Vec::with_capacity(ids.len());
        let mut conn = self.stock.store.conn().await?;
        for id in ids {
            match dead_letters::get(&mut conn, id).await? {
                Some(letter) => letters.push(letter),
                None => anyhow::bail!("there is no dead letter {id}"),
            }
        }
        drop(conn);
        letters.retain(|letter| args.filter.takes(letter));
        for letter in letters {
            let redriven = self.one(&letter, args.dry_run).await?;
            report.add(letter.id, redriven);
        }
        Ok(())
    }

    async fn one(&self, letter: &DeadLetter, dry: bool) -> Result<Redriven, HandleError> {
        let name = &letter.letter.consumer;
        let mut consumers = ConsumerName::ALL.into_iter();
        let Some(consumer) = consumers.find(|consumer| consumer.as_str() == name) else {
            return Ok(Redriven::FailedAgain(format!("no consumer is {name}")));
        };
        let (store, rules) = (&self.stock.store, self.rules.clone());
        match consumer {
            ConsumerName::Stock => {
                let handler = SettleOrders::new(self.stock.clone()).with_rules(rules);
                messaging::redrive(&handler, store, letter.id, dry).await
            }
            ConsumerName::Payment if self.payments == PaymentsMode::Upstream => {
                // A payment that we begin would be ended by nobody.
                let reason = "payments are somebody else's here (HOLDFAST_PAYMENTS=upstream)";
                Ok(Redriven::FailedAgain(reason.to_owned()))
            }
            ConsumerName::Payment => {
                let handler = ChargePayments::without_pool(store.clone()).with_rules(rules);
                messaging::redrive(&handler, store, letter.id, dry).await
            }
            ConsumerName::Order => {
                let (gate, shop) = (self.stock.gate.clone(), self.shop.clone());
                let handler =
                    order::redrive_requests::handler(store.clone(), gate, shop, rules, &self.tasks);
                messaging::redrive(&handler, store, letter.id, dry).await
            }
        }
    }

    /// Lets what is on its way to the gate arrive.
    async fn end(self) {
        if !self.tasks.finished(TELL_WITHIN).await {
            eprintln!(
                "the gate was not told of all of it; the sweep of the stock service tells it"
            );
        }
    }
}
