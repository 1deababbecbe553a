//! The text that says what is to happen where: `cp5=kill@3;cp10=delay(200)%0.1`.

use std::time::Duration;

use super::points;

/// What happens at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The process aborts.
    Kill,
    /// The point's own error.
    Err,
    /// Nothing, for ever.
    Hang,
    /// Nothing for a while.
    Delay(Duration),
    /// The thread sleeps, and with it everything that it should run.
    Block(Duration),
    /// A panic.
    Panic,
}

impl Action {
    /// As written in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Err => "err",
            Self::Hang => "hang",
            Self::Delay(_) => "delay",
            Self::Block(_) => "block",
            Self::Panic => "panic",
        }
    }
}

/// Which of the times that a point is reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum When {
    /// All.
    Always,
    /// This one, the first is 1, counted from the setting on.
    Nth(u64),
    /// Each with this probability, decided by the seed.
    Chance(f64),
}

/// One rule of a setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Where.
    pub point: &'static str,
    /// What.
    pub action: Action,
    /// When.
    pub when: When,
}

/// Why a setting can't be read.
#[derive(Debug, thiserror::Error)]
#[error("failpoint {rule:?}: {why}")]
pub struct BadSetting {
    rule: String,
    why: &'static str,
}

/// Reads a setting; an empty one has no rules.
///
/// # Errors
/// [`BadSetting`], for the first rule that can't be read.
pub fn parse(text: &str) -> Result<Vec<Rule>, BadSetting> {
    text.split(';')
        .map(str::trim)
        .filter(|rule| !rule.is_empty())
        .map(|rule| {
            parse_rule(rule).map_err(|why| BadSetting {
                rule: rule.to_owned(),
                why,
            })
        })
        .collect()
}

fn parse_rule(rule: &str) -> Result<Rule, &'static str> {
    let (name, rest) = rule.split_once('=').ok_or("write NAME=ACTION")?;
    let point = points::find(name.trim()).ok_or("there is no point of this name")?;
    let (action, when) = if let Some((action, nth)) = rest.split_once('@') {
        let nth: u64 = nth.trim().parse().map_err(|_| "@ takes a number from 1")?;
        (action, When::Nth(nth.max(1)))
    } else if let Some((action, chance)) = rest.split_once('%') {
        let chance: f64 = chance
            .trim()
            .parse()
            .map_err(|_| "% takes a number from 0 to 1")?;
        if !(0.0..=1.0).contains(&chance) {
            return Err("% takes a number from 0 to 1");
        }
        (action, When::Chance(chance))
    } else {
        (rest, When::Always)
    };
    let action = parse_action(action.trim())?;
    if action == Action::Err && !point.gives_error {
        return Err("this point has no error to give");
    }
    Ok(Rule {
        point: point.name,
        action,
        when,
    })
}

fn parse_action(text: &str) -> Result<Action, &'static str> {
    match text {
        "kill" => Ok(Action::Kill),
        "err" => Ok(Action::Err),
        "hang" => Ok(Action::Hang),
        "panic" => Ok(Action::Panic),
        _ => for_a_while(text, "delay")
            .map(Action::Delay)
            .or_else(|| for_a_while(text, "block").map(Action::Block))
            .ok_or(
                "the action is kill, err, hang, panic, delay(MILLISECONDS) or block(MILLISECONDS)",
            ),
    }
}

/// `NAME(MILLISECONDS)`.
fn for_a_while(text: &str, name: &str) -> Option<Duration> {
    let rest = text.strip_prefix(name)?.strip_prefix('(')?;
    let ms = rest.strip_suffix(')')?.trim().parse().ok()?;
    Some(Duration::from_millis(ms))
}
