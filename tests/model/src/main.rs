//! `cargo run -p model --features walk -- --states 10000000`: walks the small configurations, then
//! larger ones until so many states were seen, and prints what was found. `--all` walks all but the
//! large ones in any case. `--mutations` also breaks every rule once. `--only NAME` walks one
//! configuration and prints the steps to each broken promise. Fails when a promise is broken, a
//! broken rule is not found, there were fewer states, or, of all, something that must be met was not.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use model::{
    CONFIGURATIONS, Configuration, Mutation, Rules,
    check::Until,
    configurations::{
        Size,
        table::{self, Walked},
    },
};

const USAGE: &str =
    "model [--all] [--states N] [--threads N] [--mutations] [--only NAME [--break RULE]]";

#[derive(Debug)]
struct Args {
    size: Size,
    states: usize,
    threads: usize,
    mutations: bool,
    only: Option<String>,
    broken: Option<String>,
}

fn main() -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let Some(args) = read_args() else {
        writeln!(out, "{USAGE}")?;
        return Ok(ExitCode::from(2));
    };
    let well = match &args.only {
        Some(name) => walk_one(&mut out, name, &args)?,
        None => {
            let held = walk(&mut out, &args)?;
            let found = !args.mutations || break_all(&mut out, args.threads)?;
            held && found
        }
    };
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn read_args() -> Option<Args> {
    let mut args = Args {
        size: Size::Small,
        states: 0,
        threads: std::thread::available_parallelism().map_or(2, Into::into),
        mutations: false,
        only: None,
        broken: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--all" => args.size = Size::Medium,
            "--states" => args.states = words.next()?.replace('_', "").parse().ok()?,
            "--threads" => args.threads = words.next()?.parse().ok()?,
            "--mutations" => args.mutations = true,
            "--only" => args.only = Some(words.next()?),
            "--break" => args.broken = Some(words.next()?),
            _ => return None,
        }
    }
    Some(args)
}

fn walk(out: &mut impl io::Write, args: &Args) -> io::Result<bool> {
    let mut walked: Vec<Walked> = Vec::new();
    let mut states = 0;
    let mut by_size: Vec<_> = CONFIGURATIONS.iter().collect();
    by_size.sort_by_key(|configuration| configuration.size);
    for configuration in by_size {
        if configuration.size > args.size && states >= args.states {
            break;
        }
        let outcome = configuration.run(Rules::default(), Until::Exhausted, args.threads);
        states += outcome.states;
        writeln!(out, "{}", table::row(configuration.name, &outcome))?;
        tell(out, &outcome.violations)?;
        walked.push((configuration, outcome));
    }
    writeln!(out, "\n{}\n", table::states(&walked))?;
    for (name, count) in table::reached(&walked) {
        writeln!(out, "{count:>12}  {name}")?;
    }
    let enough = states >= args.states;
    if !enough {
        writeln!(out, "only {states} states of {}", args.states)?;
    }
    let held = walked
        .iter()
        .all(|(_, outcome)| outcome.violations.is_empty());
    // Each of the configurations has something of its own to meet; the large ones nothing new.
    let all = CONFIGURATIONS
        .iter()
        .filter(|configuration| configuration.size <= Size::Medium)
        .all(|one| walked.iter().any(|(walked, _)| walked.name == one.name));
    let reached = !all || table::unreached(&walked).is_empty();
    Ok(held && enough && reached)
}

fn break_all(out: &mut impl io::Write, threads: usize) -> io::Result<bool> {
    let mut all_found = true;
    for mutation in Mutation::ALL {
        let Some(configuration) = Configuration::named(mutation.configuration()) else {
            continue;
        };
        let rules = Rules {
            broken: Some(*mutation),
        };
        let outcome = configuration.run(rules, Until::Broken, threads);
        all_found &= !outcome.violations.is_empty();
        writeln!(out, "{}", table::found(*mutation, &outcome))?;
    }
    Ok(all_found)
}

fn walk_one(out: &mut impl io::Write, name: &str, args: &Args) -> io::Result<bool> {
    let Some(configuration) = Configuration::named(name) else {
        writeln!(out, "no configuration is named {name}")?;
        return Ok(false);
    };
    let broken = args.broken.as_ref().and_then(|rule| {
        let mut all = Mutation::ALL.iter().copied();
        all.find(|mutation| mutation.name() == rule)
    });
    let until = if broken.is_some() {
        Until::Broken
    } else {
        Until::Exhausted
    };
    let outcome = configuration.run(Rules { broken }, until, args.threads);
    writeln!(out, "{}", table::row(name, &outcome))?;
    for (name, count) in &outcome.reached {
        writeln!(out, "{count:>12}  {name}")?;
    }
    tell(out, &outcome.violations)?;
    Ok(outcome.violations.is_empty())
}

fn tell(out: &mut impl io::Write, violations: &[model::check::Violation]) -> io::Result<()> {
    for violation in violations {
        writeln!(out, "BROKEN: {}", violation.property)?;
        for step in &violation.steps {
            writeln!(out, "    {step}")?;
        }
    }
    Ok(())
}
