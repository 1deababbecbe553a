//! Free ports that stay free: below the range from which the kernel lends ports to clients, so
//! that a server which is restarted finds its port again.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::Path,
};

use super::{ServerError, files};

const LOWEST: u16 = 15_000;
const HIGHEST: u16 = 32_000;
const ATTEMPTS: usize = 200;

/// Which port a server is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ports {
    /// Any that is free; the last one again where possible.
    #[default]
    Free,
    /// This one.
    Fixed(u16),
}

/// A port of 127.0.0.1 on which nobody listens now.
///
/// # Errors
/// None was found.
pub fn free_port() -> Result<u16, ServerError> {
    (0..ATTEMPTS)
        .map(|_| rand::random_range(LOWEST..HIGHEST))
        .find(|port| is_free(*port))
        .ok_or(ServerError::NoPort)
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

impl Ports {
    /// The port, remembered in `file` so that addresses survive a restart of the set.
    ///
    /// # Errors
    /// None is free, or the file can't be written.
    pub fn choose(self, file: &Path) -> Result<u16, ServerError> {
        if let Self::Fixed(port) = self {
            return Ok(port);
        }
        let last = fs::read_to_string(file)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        let port = match last {
            Some(port) if is_free(port) => port,
            _ => free_port()?,
        };
        files::write_private(file, &port.to_string())?;
        Ok(port)
    }
}
