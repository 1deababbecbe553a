//! Files of a state directory: private, replaced whole, and their last lines.

use std::{
    fs,
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use super::ServerError;

/// Writes a file that only its owner reads, replacing it whole: a reader sees the old or the new.
///
/// # Errors
/// The directory can't be written.
pub fn write_private(path: &Path, content: &str) -> Result<(), ServerError> {
    let fresh = path.with_extension("new");
    let write = || {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    };
    write().map_err(|source| ServerError::file("writing", path, source))
}

/// Makes a directory and its parents; others may pass through it, but not list it.
pub(crate) fn make_dir(path: &Path) -> Result<(), ServerError> {
    let make = || {
        if !path.is_dir() {
            fs::create_dir_all(path)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o711))?;
        }
        Ok(())
    };
    make().map_err(|source| ServerError::file("making the directory", path, source))
}

/// The last lines of a log, for an error message; empty when there is none.
#[must_use]
pub fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// The first `relative` that exists in a parent of the working directory or of this program: how
/// an installed checkout finds its own files from anywhere.
#[must_use]
pub fn locate_upwards(relative: &Path) -> Option<PathBuf> {
    let starts = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    starts.into_iter().flatten().find_map(|start| {
        start
            .ancestors()
            .map(|dir| dir.join(relative))
            .find(|path| path.exists())
    })
}

/// The content of `path`, made by `make` the first time.
///
/// # Errors
/// The file can't be read or written.
pub fn read_or_create(path: &Path, make: impl FnOnce() -> String) -> Result<String, ServerError> {
    if path.exists() {
        return fs::read_to_string(path)
            .map(|text| text.trim().to_owned())
            .map_err(|source| ServerError::file("reading", path, source));
    }
    let content = make();
    write_private(path, &content)?;
    Ok(content)
}

/// 192 random bits, as text that needs no quoting in a URL or a shell.
#[must_use]
pub fn random_secret() -> String {
    hex::encode(rand::random::<[u8; 24]>())
}
