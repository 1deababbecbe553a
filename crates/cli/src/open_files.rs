//! The limit of open files: a sale has more connections than the 1,024 that a shell grants.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard one, for this process and those that it starts.
///
/// # Errors
/// The system refused; the limit is what it was.
pub fn raise_limit() -> nix::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(())
}
