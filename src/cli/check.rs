//! `gateway check`: reads a configuration as `serve` would, and prints what it comes to.
//!
//! Standard output is the effective configuration with defaults filled in and secrets as `***`; warnings and errors go
//! to standard error. Exit code 0 with a valid file, 2 without.

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use crate::config::{self, Overrides};

/// Exit code of a configuration that does not load; also what clap uses for wrong flags.
const INVALID: u8 = 2;

/// Validate a configuration file and print the effective configuration, secrets masked.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    /// Configuration file (YAML)
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Accept a data port beyond loopback without keys
    #[arg(long)]
    pub insecure_no_auth: bool,
}

/// Runs the command on the process's environment and standard streams.
#[must_use]
pub fn run(args: CheckArgs) -> ExitCode {
    check(args, &config::environment, &mut io::stdout().lock(), &mut io::stderr().lock())
        // The reader of a stream went away: nobody is left to tell.
        .unwrap_or(ExitCode::FAILURE)
}

fn check(
    args: CheckArgs,
    env: &dyn Fn(&str) -> Option<String>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<ExitCode> {
    let CheckArgs { config, insecure_no_auth } = args;
    match config::load(&Overrides { config: Some(config), insecure_no_auth, ..Overrides::default() }, env) {
        Ok(plan) => {
            for warning in &plan.warnings {
                writeln!(err, "warning: {warning}")?;
            }
            write!(out, "{}", config::effective_yaml(&plan))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            for problem in &error.problems {
                writeln!(err, "error: {problem}")?;
            }
            Ok(ExitCode::from(INVALID))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> (bool, String, String) {
        let path = std::env::temp_dir().join(format!("gateway-check-{}.yaml", uuid::Uuid::now_v7()));
        std::fs::write(&path, text).unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let args = CheckArgs { config: path.clone(), insecure_no_auth: false };
        let env = |name: &str| (name == "KEY").then(|| "sk-secret-1234".to_owned());
        let code = check(args, &env, &mut out, &mut err).unwrap();
        std::fs::remove_file(path).unwrap();
        let ok = format!("{code:?}") == format!("{:?}", ExitCode::SUCCESS);
        (ok, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn a_valid_file_is_shown_with_its_secrets_masked_and_warnings_apart() {
        let text = "server: { listen: 0.0.0.0:8080, insecure_no_auth: true }\nmodels:\n  - name: m\n    api_key: ${KEY}\n    replicas: [ { url: http://h:1 } ]\n";

        let (ok, out, err) = checked(text);

        assert!(ok, "{err}");
        assert!(out.contains("http://h:1") && out.contains("***") && !out.contains("sk-secret"), "{out}");
        assert!(err.starts_with("warning: anybody who reaches 0.0.0.0:8080 may use the models"), "{err}");
    }

    #[test]
    fn an_invalid_file_prints_all_its_problems_and_nothing_else() {
        let (ok, out, err) = checked("models:\n  - name: m\n    routing: { policy: best }\n");

        assert!(!ok);
        assert_eq!(out, "");
        assert_eq!(err.lines().count(), 2, "{err}");
        assert!(err.lines().all(|line| line.starts_with("error: ") && line.contains(".yaml:")), "{err}");
    }
}
