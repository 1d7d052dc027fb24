//! The `weft` program: `weft serve`, `weft check`, `weft convert` and `weft drives`.

use anyhow::{Context, Result, bail};
use clap::Parser;
use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};
use weft::{
    cli::{CheckArgs, Cli, Command, ConvertArgs, ServeArgs},
    config::{AllowedHosts, Config, Format, Loaded, TransportKind},
    control,
    daemon::Daemon,
    drives, logging, mdns,
    target::Target,
};

/// Descriptors for the parts of the program itself, before any host connects.
const FEWEST_OPEN_FILES: u64 = 64;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(arguments) => serve(&arguments),
        Command::Check(arguments) => check(&arguments),
        Command::Drives => list_drives(),
        Command::Convert(arguments) => convert(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line, causes included; a list of mistakes in a file is the exception.
            eprintln!("weft: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn list_drives() -> Result<()> {
    let text = drives::list().context("cannot list the drives in /sys/class/nvme-generic")?;
    // Whoever reads may have heard enough.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn check(arguments: &CheckArgs) -> Result<()> {
    let loaded = load(&arguments.config, arguments.strict)?;
    let namespaces: usize = loaded.config.subsystems.iter().map(|s| s.namespaces.len()).sum();
    println!(
        "{} is right: {} port(s), {} subsystem(s), {namespaces} namespace(s)",
        arguments.config.display(),
        loaded.config.ports.len(),
        loaded.config.subsystems.len(),
    );
    Ok(())
}

fn convert(arguments: &ConvertArgs) -> Result<()> {
    let mut loaded = load(&arguments.input, arguments.strict)?;
    loaded.config.make_paths_absolute().context("the current directory is not known")?;
    let to = arguments.to.unwrap_or(match loaded.format {
        Format::Toml => Format::Json,
        Format::Json => Format::Toml,
    });
    let (text, lost) = match to {
        Format::Toml => (loaded.config.to_toml(), Vec::new()),
        Format::Json => loaded.config.to_json(),
    };
    lost.iter().for_each(|lost| eprintln!("lost: {lost}"));
    if arguments.strict && !lost.is_empty() {
        bail!("{} thing(s) of {} would get lost (--strict)", lost.len(), arguments.input.display());
    }
    match &arguments.output {
        None => io::stdout().write_all(text.as_bytes()).context("cannot write to standard output"),
        Some(path) if arguments.force => replace(path, &text),
        Some(path) => {
            let file = File::options().write(true).create_new(true).open(path);
            let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
            written.with_context(|| format!("cannot write {} (--force writes over a file)", path.display()))
        }
    }
}

/// Puts a new file in the place of an old one; whatever happens, one of them is there whole.
fn replace(path: &Path, text: &str) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Reads a configuration file and says everything there is to say about it.
fn load(path: &Path, strict: bool) -> Result<Loaded> {
    let loaded = match Config::load(path) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            bail!("{} cannot be used", path.display());
        }
    };
    loaded.remarks.iter().for_each(|remark| eprintln!("{remark}"));
    let unsupported = loaded.unsupported().count();
    if strict && unsupported > 0 {
        bail!("{} asks for {unsupported} thing(s) that weft cannot do yet (--strict)", path.display());
    }
    Ok(loaded)
}

fn serve(arguments: &ServeArgs) -> Result<()> {
    let mut config = match &arguments.config {
        Some(path) => load(path, arguments.strict)?.config,
        None => Config::default_target(),
    };
    arguments.apply(&mut config)?;
    logging::init(arguments.log_filter(&config), arguments.log_format)?;
    let open_files = reactor::system::raise_open_files().context("cannot read the limit for open files")?;
    if open_files < FEWEST_OPEN_FILES {
        bail!(
            "the limit for open files is {open_files}, too low to start: raise it (`ulimit -n`, LimitNOFILE= in the unit) to \
             {FEWEST_OPEN_FILES} at least"
        );
    }
    let needed = config.limits.connections as u64 + 64;
    if open_files < needed {
        tracing::warn!(
            "the limit for open files is {open_files}, {needed} would be needed for `limits.connections` = {}: raise it \
             (`ulimit -n`, LimitNOFILE= in the unit) or lower the limit of connections",
            config.limits.connections
        );
    }
    run(&config, arguments.config.is_none())
}

fn run(config: &Config, is_default: bool) -> Result<()> {
    let daemon = Daemon::start(config)?;
    let stopping = daemon.target.clone();
    let control =
        control::start(config.metrics.address, daemon.registry.clone(), Box::new(move || stopping.stop()));
    let control = match control {
        Ok(control) => control,
        Err(error) => {
            daemon.target.stop();
            daemon.join().context("a reactor failed")?;
            return Err(error.into());
        }
    };
    announce(config, &daemon.target, &control, is_default);
    // Says goodbye when it is dropped.
    let announcement = if config.discovery.mdns { announce_by_mdns(&daemon.target) } else { None };
    daemon.join().context("a reactor failed")?;
    drop(announcement);
    control.stop();
    tracing::info!("stopped");
    Ok(())
}

/// Announces the discovery service on the local network; whoever knows the address needs none of it.
fn announce_by_mdns(target: &Target) -> Option<mdns::Announcement> {
    mdns::announce(target).unwrap_or_else(|error| {
        tracing::warn!("cannot announce the discovery service by mDNS: {error}; weft serves without it");
        None
    })
}

/// Says what is exported and how to use it.
fn announce(config: &Config, target: &Target, control: &control::ControlThread, is_default: bool) {
    for port in &target.ports {
        let transport = match port.transport {
            TransportKind::Tcp => "NVMe/TCP",
            TransportKind::Rdma => "NVMe/RDMA",
        };
        tracing::info!(port = port.id, "listening on {} ({transport})", port.address);
    }
    tracing::info!("metrics on http://{}/metrics", control.address());
    for subsystem in &target.subsystems {
        let open = subsystem.hosts == AllowedHosts::Any;
        let who = if open { "any host" } else { "the listed hosts" };
        tracing::info!(subsystem = %subsystem.nqn, namespaces = subsystem.namespaces.len(), "exported to {who}");
    }
    if let (true, Some(port), Some(subsystem)) = (is_default, target.ports.first(), config.subsystems.first())
    {
        let (ip, service) = (port.address.ip(), port.address.port());
        let reach = if ip.is_loopback() {
            format!(
                "Only this machine can reach it. To open it to the network, to any host that can reach the port:\n\n    \
                 weft serve --listen 0.0.0.0:{service}\n\nor say who may connect, and what to export, in a file: see \
                 weft.example.toml."
            )
        } else {
            "Any host that can reach this port may connect. To say who may, use a file: see weft.example.toml.".into()
        };
        // Whoever started us may have stopped listening; that is no reason to end.
        let _ = writeln!(
            io::stdout(),
            "\n1 GiB of memory is exported to any host. Connect with\n\n    nvme connect -t tcp -a {ip} -s {service} -n \
             {}\n\n{reach}\n",
            subsystem.nqn
        );
    }
}
