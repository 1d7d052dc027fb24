//! The command line: what can be asked for, and how it changes a configuration.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, Format};
use crate::logging;

/// The arguments of the `weft` program.
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "weft", version, about, long_about = None, max_term_width = 100)]
#[command(propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `weft` can do.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Export namespaces until a signal comes
    ///
    /// Without --config, one gibibyte of memory is exported on 127.0.0.1:4420 to any host of this machine as
    /// nqn.2026-12.io.weft:default. SIGTERM or SIGINT lets running commands finish; a second one ends at
    /// once.
    Serve(ServeArgs),
    /// Check a configuration file and name every mistake in it
    ///
    /// Prints each mistake with line and column and exits with status 1 when there is one. Nothing is opened
    /// or bound.
    Check(CheckArgs),
    /// List the NVMe drives of this machine
    ///
    /// For each namespace: what it is, who uses it, and what weft would make of it as backend "passthrough".
    Drives,
    /// Turn weft's TOML into JSON for nvmetcli, or the other way round
    ///
    /// Reads either, told apart by what is in it, and writes the other one (or what --to says). What the file asks for
    /// and weft cannot do, and what the other format cannot say, is listed on standard error.
    Convert(ConvertArgs),
}

/// `weft serve`
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct ServeArgs {
    /// The configuration file: TOML (see weft.example.toml), or JSON saved by nvmetcli
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen here instead of the address of the only port; port 0 lets the kernel choose
    #[arg(short, long, value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,
    /// Serve /metrics and /healthz here instead
    #[arg(short, long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,
    /// What to log: off, error, warn, info, debug or trace, or parts such as info,weft=debug
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// How log lines on standard error look
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub log_format: logging::Format,
    /// How many reactors to run instead of one for each CPU this process may use
    #[arg(short, long, value_name = "N")]
    pub reactors: Option<NonZeroUsize>,
    /// Refuse a file that asks for something weft cannot do yet, instead of leaving it out
    #[arg(long, requires = "config")]
    pub strict: bool,
}

/// `weft check`
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct CheckArgs {
    /// The configuration file: weft's TOML, or JSON saved by nvmetcli
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,
    /// Refuse a file that asks for something weft cannot do yet
    #[arg(long)]
    pub strict: bool,
}

/// `weft convert`
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct ConvertArgs {
    /// The file to read
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// What to write; without it the format that IN does not have
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub to: Option<Format>,
    /// Write this file, which must not exist, instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write FILE even where there is one already
    #[arg(long, requires = "output")]
    pub force: bool,
    /// Write nothing unless everything in IN is kept
    #[arg(long)]
    pub strict: bool,
}

/// `--listen` does not say which port it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmbiguousListen {
    ports: usize,
}

impl fmt::Display for AmbiguousListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--listen: the configuration has {} ports: expected one with a single [[port]]", self.ports)
    }
}

impl std::error::Error for AmbiguousListen {}

impl ServeArgs {
    /// Puts what the command line says over what the configuration says.
    ///
    /// # Errors
    ///
    /// `--listen` was given, but the configuration has several ports.
    pub fn apply(&self, config: &mut Config) -> Result<(), AmbiguousListen> {
        if let Some(address) = self.listen {
            match config.ports.as_mut_slice() {
                [port] => port.address = address,
                ports => return Err(AmbiguousListen { ports: ports.len() }),
            }
        }
        if let Some(address) = self.metrics {
            config.metrics.address = address;
        }
        if self.reactors.is_some() {
            config.reactors.count = self.reactors;
        }
        if self.log.is_some() {
            config.log.clone_from(&self.log);
        }
        Ok(())
    }

    /// The log filter in force: the command line's, the configuration's, or the default.
    #[must_use]
    pub fn log_filter<'a>(&'a self, config: &'a Config) -> &'a str {
        self.log.as_deref().or(config.log.as_deref()).unwrap_or(logging::DEFAULT_FILTER)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    fn serve(arguments: &[&str]) -> ServeArgs {
        let all = ["weft", "serve"].iter().chain(arguments);
        match Cli::try_parse_from(all).unwrap().command {
            Command::Serve(arguments) => arguments,
            Command::Check(_) | Command::Convert(_) | Command::Drives => unreachable!(),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn nothing_given_changes_nothing() {
        let mut config = Config::default_target();
        let arguments = serve(&[]);
        arguments.apply(&mut config).unwrap();
        assert_eq!(config, Config::default_target());
        assert_eq!(arguments.log_filter(&config), "info");
        assert_eq!(arguments.log_format, logging::Format::Text);
    }

    #[test]
    fn the_command_line_goes_before_the_configuration() {
        let mut config = Config::default_target();
        config.log = Some("warn".to_owned());
        let arguments = serve(&[
            "--listen",
            "[::1]:0",
            "--metrics",
            "127.0.0.1:1",
            "--log",
            "debug",
            "--log-format",
            "json",
            "--reactors",
            "3",
        ]);
        assert_eq!(arguments.log_filter(&config), "debug");
        arguments.apply(&mut config).unwrap();
        assert_eq!(config.ports[0].address, "[::1]:0".parse().unwrap());
        assert_eq!(config.metrics.address, "127.0.0.1:1".parse().unwrap());
        assert_eq!(config.reactors.count, NonZeroUsize::new(3));
        assert_eq!(config.log.as_deref(), Some("debug"));
        assert_eq!(arguments.log_format, logging::Format::Json);
    }

    #[test]
    fn listen_needs_a_single_port() {
        let mut config = Config::default_target();
        config.ports.push(config.ports[0].clone());
        let error = serve(&["--listen", "127.0.0.1:0"]).apply(&mut config).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--listen: the configuration has 2 ports: expected one with a single [[port]]"
        );
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let kind = |arguments: &[&str]| Cli::try_parse_from(arguments).unwrap_err().kind();
        assert_eq!(kind(&["weft"]), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand);
        assert_eq!(kind(&["weft", "--version"]), ErrorKind::DisplayVersion);
        assert_eq!(kind(&["weft", "check"]), ErrorKind::MissingRequiredArgument);
        assert_eq!(kind(&["weft", "convert"]), ErrorKind::MissingRequiredArgument);
        assert_eq!(kind(&["weft", "convert", "x", "--to", "yaml"]), ErrorKind::InvalidValue);
        assert_eq!(kind(&["weft", "convert", "x", "--force"]), ErrorKind::MissingRequiredArgument);
        assert_eq!(kind(&["weft", "serve", "--strict"]), ErrorKind::MissingRequiredArgument);
        assert_eq!(kind(&["weft", "serve", "--listen", "localhost"]), ErrorKind::ValueValidation);
        assert_eq!(kind(&["weft", "serve", "--reactors", "0"]), ErrorKind::ValueValidation);
        assert_eq!(kind(&["weft", "serve", "--log-format", "xml"]), ErrorKind::InvalidValue);
    }
}
