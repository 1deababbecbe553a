//! Turns holds and registers into the keys and arguments of the scripts, and their replies into
//! outcomes. Numbers are bounded here, so that a script never meets one that a double can't hold.

use std::collections::BTreeMap;

use contracts::Sku;
use domain::gate::{Hold, Register, Shard};

use crate::{
    GateError,
    connection::Invocation,
    keys::Keys,
    outcome::Word,
    script::{NUMBER_MAX, Script},
};

/// Which keys a script wants per SKU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PerSku {
    Gate,
    GateAndBuyers,
}

/// The SKUs of a call, sorted, each with its place (from 1) and its register.
#[derive(Debug, Default)]
pub(crate) struct SkuTable<'a> {
    rows: BTreeMap<&'a Sku, (usize, Option<&'a Register>)>,
}

impl<'a> SkuTable<'a> {
    /// The SKUs of the lines and `more`.
    pub(crate) fn new(holds: &[&'a Hold], more: impl IntoIterator<Item = &'a Sku>) -> Self {
        let mut rows = BTreeMap::new();
        let lines = holds
            .iter()
            .flat_map(|hold| hold.lines.iter().map(|line| &line.sku));
        for sku in lines.chain(more) {
            rows.insert(sku, (0, None));
        }
        for (place, row) in rows.values_mut().enumerate() {
            row.0 = place + 1;
        }
        Self { rows }
    }

    /// Adds the newest register of each SKU that is in the table.
    pub(crate) fn with_registers(mut self, registers: &BTreeMap<&Sku, &'a Register>) -> Self {
        for (sku, row) in &mut self.rows {
            row.1 = registers.get(sku).copied();
        }
        self
    }

    pub(crate) fn skus(&self) -> impl Iterator<Item = &'a Sku> + '_ {
        self.rows.keys().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn keys(
        &self,
        keys: &Keys,
        shard: Shard,
        epoch: &str,
        per_sku: PerSku,
    ) -> Vec<String> {
        let mut out = Vec::with_capacity(3 + 2 * self.rows.len());
        out.extend([
            keys.meta(shard),
            keys.holds(shard, epoch),
            keys.due(shard, epoch),
        ]);
        for sku in self.rows.keys() {
            out.push(keys.gate(shard, epoch, sku));
            if per_sku == PerSku::GateAndBuyers {
                out.push(keys.buyers(shard, epoch, sku));
            }
        }
        out
    }

    pub(crate) fn push_names(&self, call: &mut Invocation) {
        call.args.push(self.rows.len().to_string());
        call.args.extend(self.rows.keys().map(ToString::to_string));
    }

    pub(crate) fn push_registers(&self, call: &mut Invocation) -> Result<(), GateError> {
        call.args.push(self.rows.len().to_string());
        for (sku, (_, register)) in &self.rows {
            call.args.push(sku.to_string());
            match register {
                None => call.args.extend((0..5).map(|_| "-".to_owned())),
                Some(register) => push_register(register, call)?,
            }
        }
        Ok(())
    }

    pub(crate) fn push_holds(&self, holds: &[&Hold], call: &mut Invocation) {
        call.args.push(holds.len().to_string());
        for hold in holds {
            call.args.push(hold.hold_id.to_string());
            call.args.push(hold.buyer.to_string());
            call.args.push(hold.lines.len().to_string());
            for line in &hold.lines {
                let place = self.rows.get(&line.sku).map_or(0, |row| row.0);
                call.args.push(place.to_string());
                call.args.push(line.quantity.to_string());
            }
        }
    }
}

fn push_register(register: &Register, call: &mut Invocation) -> Result<(), GateError> {
    let per_customer = register.per_customer_limit;
    call.args.push(number("version", register.version)?);
    call.args.push(number("limit", register.limit)?);
    call.args.push(moment(register.opens_at_ms));
    call.args.push(moment(register.closes_at_ms));
    call.args.push(match per_customer {
        None => "-".to_owned(),
        Some(units) => number("per_customer_limit", units)?,
    });
    Ok(())
}

/// A number that the scripts can hold exactly.
pub(crate) fn number(what: &'static str, value: i64) -> Result<String, GateError> {
    if (0..=NUMBER_MAX).contains(&value) {
        Ok(value.to_string())
    } else {
        Err(GateError::OutOfRange(what))
    }
}

/// A moment beyond what the scripts hold (the year 33658) is as good as that, and one before 1970
/// as good as 1970.
fn moment(at_ms: Option<i64>) -> String {
    at_ms.map_or_else(|| "-".to_owned(), |ms| ms.clamp(0, NUMBER_MAX).to_string())
}

/// Whether the lines are what the type promises: at least one, sorted, one per SKU.
pub(crate) fn is_canonical(hold: &Hold) -> bool {
    !hold.lines.is_empty()
        && hold.lines.len() <= 1_000
        && hold.lines.windows(2).all(|pair| pair[0].sku < pair[1].sku)
}

/// The ends of the chunks of `holds` that each fit in one call.
pub(crate) fn chunks<'a, 'h>(holds: &'a [&'h Hold]) -> impl Iterator<Item = &'a [&'h Hold]> {
    let mut rest = holds;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut lines = 0;
        let fits = rest
            .iter()
            .take(crate::script::BATCH_MAX)
            .take_while(|hold| {
                lines += hold.lines.len();
                lines <= crate::script::BATCH_LINES_MAX
            })
            .count();
        let (chunk, tail) = rest.split_at(fits.max(1));
        rest = tail;
        Some(chunk)
    })
}

/// A reply: the newest epoch, then words.
#[derive(Debug)]
pub(crate) struct Reply {
    verb: &'static str,
    pub(crate) epoch: String,
    words: Vec<String>,
}

impl Reply {
    pub(crate) fn read(script: &Script, reply: Vec<String>) -> Result<Self, GateError> {
        let mut words = reply.into_iter();
        let epoch = words.next().ok_or(GateError::Reply {
            verb: script.name,
            detail: "nothing".to_owned(),
        })?;
        Ok(Self {
            verb: script.name,
            epoch,
            words: words.collect(),
        })
    }

    /// The words as two kinds of outcomes, of which the first kind has `first` words.
    pub(crate) fn outcomes<A: Word, B: Word>(
        &self,
        first: usize,
        second: usize,
    ) -> Result<(Vec<A>, Vec<B>), GateError> {
        if self.words.len() != first + second {
            return Err(GateError::Reply {
                verb: self.verb,
                detail: format!("{} words instead of {}", self.words.len(), first + second),
            });
        }
        let (a, b) = self.words.split_at(first);
        Ok((self.parse(a)?, self.parse(b)?))
    }

    fn parse<W: Word>(&self, words: &[String]) -> Result<Vec<W>, GateError> {
        words
            .iter()
            .map(|word| {
                W::parse(word).ok_or_else(|| GateError::Reply {
                    verb: self.verb,
                    detail: format!("the word {word:?}"),
                })
            })
            .collect()
    }
}
