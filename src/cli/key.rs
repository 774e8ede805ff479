//! `gateway key new`: a client key, shown once, and its entry in the configuration.

use std::{io::Write, process::ExitCode};

use anyhow::Context;
use clap::{Args, Subcommand};
use ring::rand::{SecureRandom, SystemRandom};

/// Random bytes of a key: 256 bits, so that its plain SHA-256 cannot be searched.
const KEY_BYTES: usize = 32;

/// Client keys.
#[derive(Debug, Args)]
pub struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Make a key; it is shown once and stored nowhere.
    New(NewArgs),
}

#[derive(Debug, Args)]
struct NewArgs {
    /// Name of the key in logs and metrics.
    #[arg(long, value_name = "NAME", default_value = "team-a")]
    id: String,
}

/// Runs the command.
///
/// # Errors
/// When the system has no randomness, or the name is none.
pub fn run(args: &KeyArgs) -> anyhow::Result<ExitCode> {
    let KeyCommand::New(NewArgs { id }) = &args.command;
    let good = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if id.is_empty() || id.len() > 64 || !id.chars().all(good) {
        anyhow::bail!("--id is `{id}`; write up to 64 letters, digits, `-`, `_` or `.`");
    }
    let key = new_key().context("the system has no randomness")?;
    std::io::stdout().write_all(text(id, &key).as_bytes()).context("the key could not be printed")?;
    Ok(ExitCode::SUCCESS)
}

fn new_key() -> anyhow::Result<String> {
    let mut bytes = [0_u8; KEY_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| anyhow::anyhow!("reading random bytes failed"))?;
    Ok(format!("sk-gw-{}", hex(&bytes)))
}

fn text(id: &str, key: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, key.as_bytes());
    format!(
        "The key. It is shown this once; give it to its owner:\n\n  {key}\n\nIts entry under `keys:` in the \
         configuration (a running gateway takes it\nwithout a restart):\n\n  - id: {id}\n    sha256: {}\n",
        hex(digest.as_ref())
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_holds_the_digest_and_not_the_key() {
        let text = text("team-b", "sk-gw-1");
        let entry = text.split("configuration").nth(1).unwrap();
        // printf %s sk-gw-1 | sha256sum
        let digest = "33a4630096f403ef651f7571c8fb431e333345a85df70526e8239569e6dd1925";
        assert!(entry.contains(digest), "{entry}");
        assert!(!entry.contains("sk-gw-1"));
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn keys_are_long_and_never_the_same() {
        let (one, two) = (new_key().unwrap(), new_key().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.len(), "sk-gw-".len() + 2 * KEY_BYTES);
    }
}
