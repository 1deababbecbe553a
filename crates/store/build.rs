//! Rebuilds the crate when a migration is added: `sqlx::migrate!` reads the folder at build time.

#[expect(clippy::print_stdout, reason = "this is how a build script talks to cargo")]
fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
