//! `make chaos`: real processes and servers under load, faults of every kind, and afterwards the
//! clients' log and every invariant against the database. Exit code 0 only when all is green and
//! every fault was seen to bite.

use std::process::ExitCode;

use chaos::{args, run};
use clap::Parser;
use platform::Shutdown;

fn main() -> ExitCode {
    let args = args::Args::parse();
    let seed = args
        .seed
        .unwrap_or_else(|| u64::from(rand::random::<u32>()));
    if let Err(error) = cli::open_files::raise_limit() {
        eprintln!("warning: the limit of open files stays as it is: {error}");
    }
    let built = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = match built {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(async {
        let shutdown = Shutdown::on_signal();
        Box::pin(run::run(&args, seed, &shutdown)).await
    });
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            let seconds = args.seconds;
            eprintln!("replay: make chaos SEED={seed} SECONDS={seconds}");
            ExitCode::FAILURE
        }
    }
}
