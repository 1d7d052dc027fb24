//! The `weft` program: `weft serve` and `weft check`.

use anyhow::{Context, Result, bail};
use clap::Parser;
use std::{process::ExitCode, sync::Arc};
use transports::{Transport, tcp::Tcp};
use weft::{
    cli::{CheckArgs, Cli, Command, ServeArgs},
    config::{AllowedHosts, Config, TransportKind},
    control,
    local::Local,
    logging,
    metrics::{Labels, Registry},
    queue_pair,
    target::{BoundPort, Target},
};

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(arguments) => serve(&arguments),
        Command::Check(arguments) => check(&arguments),
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

fn check(arguments: &CheckArgs) -> Result<()> {
    let loaded = match Config::load(&arguments.config) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            bail!("{} cannot be used", arguments.config.display());
        }
    };
    for warning in &loaded.warnings {
        eprintln!("{warning}");
    }
    let namespaces: usize = loaded.config.subsystems.iter().map(|s| s.namespaces.len()).sum();
    println!(
        "{} is right: {} port(s), {} subsystem(s), {namespaces} namespace(s)",
        arguments.config.display(),
        loaded.config.ports.len(),
        loaded.config.subsystems.len(),
    );
    Ok(())
}

fn serve(arguments: &ServeArgs) -> Result<()> {
    let mut config = match &arguments.config {
        Some(path) => {
            let loaded = Config::load(path)?;
            loaded.warnings.iter().for_each(|warning| eprintln!("{warning}"));
            loaded.config
        }
        None => Config::default_target(),
    };
    arguments.apply(&mut config)?;
    logging::init(arguments.log_filter(&config), arguments.log_format)?;
    let open_files = reactor::system::raise_open_files().context("cannot read the limit for open files")?;
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
    let (listeners, ports) = bind(config)?;
    let target = Arc::new(Target::open(config, ports)?);
    let processors = reactor::system::processors();
    let count = config.reactors.count.map_or(processors.len(), usize::from);
    let labels = Labels::nvme(env!("CARGO_PKG_VERSION"), config.limits.connections);
    let registry = Registry::new(count, labels);
    let threads = start_reactors(config, &processors, &target, &registry)?;
    target.set_reactors(threads.iter().map(|t| t.mailbox.clone()).collect());
    let stopping = target.clone();
    let control = control::start(config.metrics.address, registry, Box::new(move || stopping.stop()));
    let control = match control {
        Ok(control) => control,
        Err(error) => {
            target.stop();
            threads.into_iter().for_each(|thread| drop(thread.join()));
            return Err(error.into());
        }
    };
    for (turn, (listener, port)) in listeners.into_iter().zip(&target.ports).enumerate() {
        let port = Arc::new(port.clone());
        threads[turn % threads.len()].mailbox.send(move |reactor| {
            if let Some(local) = weft::local::current() {
                reactor.spawn(queue_pair::serve_port::<Tcp>(local, port, listener));
            }
        });
    }
    announce(config, &target, &control, is_default);
    for thread in threads {
        thread.join().context("a reactor failed")?;
    }
    control.stop();
    tracing::info!("stopped");
    Ok(())
}

fn bind(config: &Config) -> Result<(Vec<<Tcp as Transport>::Port>, Vec<BoundPort>)> {
    let (mut listeners, mut ports) = (Vec::new(), Vec::new());
    for port in &config.ports {
        if port.transport != TransportKind::Tcp {
            bail!("port {}: this version of weft has no RDMA transport: use `transport = \"tcp\"`", port.id);
        }
        let listener = Tcp::listen(port.address).with_context(|| {
            format!(
                "port {}: cannot listen on {}: choose another `address` (or --listen)",
                port.id, port.address
            )
        })?;
        let address = Tcp::local_address(&listener)?;
        ports.push(BoundPort { id: port.id, transport: port.transport, address });
        listeners.push(listener);
    }
    Ok((listeners, ports))
}

fn start_reactors(
    config: &Config,
    processors: &[usize],
    target: &Arc<Target>,
    registry: &Arc<Registry>,
) -> Result<Vec<reactor::ReactorThread>> {
    let mut threads: Vec<reactor::ReactorThread> = Vec::new();
    for (index, metrics) in registry.reactors().iter().enumerate() {
        let options = reactor::Options {
            name: format!("weft-{index}"),
            // More reactors than processors share them unpinned: the scheduler knows better then.
            cpu: processors.get(index).copied().filter(|_| registry.reactors().len() <= processors.len()),
            buffers: config.reactors.buffer_bytes as usize,
            max_buffer: config.limits.max_transfer_bytes as usize,
            poll: config.reactors.poll,
        };
        let (target, metrics) = (target.clone(), metrics.clone());
        let thread = reactor::start(options, move |reactor| drop(Local::install(reactor, target, metrics)))
            .with_context(|| format!("reactor {index}"))?;
        if let Some(warning) = &thread.warning {
            tracing::warn!(reactor = index, "{warning}");
        }
        registry.attach(index, thread.stats.clone(), thread.mailbox.clone());
        threads.push(thread);
    }
    Ok(threads)
}

/// Says what is exported and how to use it.
fn announce(config: &Config, target: &Target, control: &control::ControlThread, is_default: bool) {
    for port in &target.ports {
        tracing::info!(port = port.id, "listening on {} (NVMe/TCP)", port.address);
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
        println!(
            "\n1 GiB of memory is exported to any host. Connect with\n\n    nvme connect -t tcp -a {ip} -s {service} -n \
             {}\n\n{reach}\n",
            subsystem.nqn
        );
    }
}
