//! Entry point: parses the command line, starts logs and the runtime, and ends with the exit code
//! that scripts rely on.

use std::process::ExitCode;

use clap::Parser;
use cli::{args::Cli, exit::Exit};

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.command.writes_logs() || std::env::var_os("HOLDFAST_LOG").is_some() {
        platform::telemetry::init();
    }
    #[cfg(feature = "failpoints")]
    if let Err(error) = platform::failpoints::start() {
        eprintln!("error: {error}");
        return Exit::Usage.into();
    }
    if let Err(error) = cli::open_files::raise_limit() {
        eprintln!("warning: the limit of open files stays as it is: {error}");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the runtime could not be started: {error}");
            return Exit::Failed.into();
        }
    };
    match runtime.block_on(cli.command.run()) {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("error: {error:#}");
            Exit::of(&error).into()
        }
    }
}
