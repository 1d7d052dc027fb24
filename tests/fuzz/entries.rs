//! What the fuzz targets call, and what the replay of their corpus calls in every `make test`: any bytes in, no panic out.

use futures::StreamExt;
use nvme::{
    Cid, ControllerId, HostId, IoCommand, Qid, Sqe,
    connect::{ConnectCommand, ConnectData},
    io::{DatasetManagement, DatasetRange},
    property::{self, PropertyGet, PropertySet, PropertySize},
};
use reactor::{Options, Reactor};
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use transports::{
    Transport,
    loopback::{Connector, FromHost, HostEnd, Loopback, ToHost},
};
use weft::{
    config::{Config, TransportKind},
    local::Local,
    metrics::ReactorMetrics,
    queue_pair,
    target::{BoundPort, Target},
};

/// A target: its name, and the function.
pub type Entry = (&'static str, fn(&[u8]));

/// Every target. The folder of its corpus has its name.
pub const ALL: [Entry; 4] =
    [("stream", stream), ("command", command), ("pipeline", pipeline), ("configuration", configuration)];

thread_local! {
    /// Only its buffers are used, so one serves all inputs.
    static REACTOR: Reactor = reactor(false);
}

fn reactor(made_up_time: bool) -> Reactor {
    let options = Options { buffers: 2 << 20, max_buffer: 64 << 10, made_up_time, ..Options::default() };
    Reactor::new(&options, Arc::default()).unwrap_or_else(|error| panic!("{error}")).0
}

/// The stream of a TCP queue pair.
pub fn stream(input: &[u8]) {
    REACTOR.with(|reactor| {
        transports::tcp::fuzzing::stream(reactor, input);
        let usage = reactor.arena_use();
        assert_eq!(usage.free, usage.total, "a data buffer is lost");
    });
}

/// A submission queue entry and data, read as everything that they could be.
pub fn command(input: &[u8]) {
    let Some((entry, data)) = input.split_first_chunk::<64>() else { return };
    let sqe = Sqe::parse(entry);
    assert_eq!(sqe.as_bytes(), entry);
    if let Ok(command) = IoCommand::parse(&sqe) {
        for lba_count in [0, 1, 1 << 20, u64::MAX] {
            let end = u128::from(command.lba.0) + u128::from(command.blocks);
            assert_eq!(command.is_within(lba_count), end <= u128::from(lba_count));
        }
        assert!(command.byte_len(4096) <= 1 << 28);
    }
    let management = DatasetManagement::parse(&sqe);
    assert!((16..=4096).contains(&management.data_len()));
    data.as_chunks().0.iter().map(DatasetRange::parse).for_each(|range| {
        let end = u128::from(range.lba.0) + u128::from(range.blocks);
        assert_eq!(range.is_within(1 << 30), end <= 1 << 30);
    });
    let connect = ConnectCommand::parse(&sqe);
    assert!((1..=65_536).contains(&connect.sq_entries));
    if let Some(data) = ConnectData::parse(data) {
        for name in [&data.subsystem_nqn, &data.host_nqn].into_iter().flatten() {
            assert!(name.as_str().len() <= 223);
        }
    }
    let _ = (PropertyGet::parse(&sqe), PropertySet::parse(&sqe), sqe.sgl());
    let _ = nvme::features::SetFeatures::parse(&sqe);
    let _ = nvme::log_page::GetLogPage::parse(&sqe);
    let _ = nvme::identify::IdentifyCommand::parse(&sqe);
}

/// Configuration text.
pub fn configuration(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Config::parse(text, "fuzz") {
        Ok(loaded) => {
            let config = loaded.config;
            assert!(!config.ports.is_empty() && !config.subsystems.is_empty());
            assert!(config.reactors.buffer_bytes >= 4 * u64::from(config.limits.max_transfer_bytes));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

const NQN: &str = "nqn.2026-12.io.weft:fuzzed";
const CONFIGURATION: &str = "[limits]\nmax_transfer = \"64 KiB\"\nin_capsule = \"4 KiB\"\ndata_timeout_ms = 1000\n\
    [[port]]\nid = 1\ntransport = \"tcp\"\naddress = \"127.0.0.1:1\"\n[[subsystem]]\nnqn = \"nqn.2026-12.io.weft:fuzzed\"\n\
    allow_any_host = true\n[[subsystem.namespace]]\nnsid = 1\nbackend = \"memory\"\nsize = \"64 KiB\"\nlba_size = 512\n\
    [[subsystem.namespace]]\nnsid = 2\nbackend = \"null\"\nsize = \"1 TiB\"\n";

/// Commands in their pipeline: the first byte says what kind of controller, then come records of a queue, a length, an entry and
/// data. Whatever they say, everything is counted to zero afterwards.
pub fn pipeline(input: &[u8]) {
    let Some((kind, records)) = input.split_first() else { return };
    let (nqn, records) =
        (if kind & 1 == 0 { NQN } else { "nqn.2014-08.org.nvmexpress.discovery" }, records.to_vec());
    let config = Config::parse(CONFIGURATION, "fuzz").unwrap_or_else(|error| panic!("{error}")).config;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let port = BoundPort { id: 1, transport: TransportKind::Tcp, address, discovery: false };
    let target =
        Arc::new(Target::open(&config, vec![port.clone()], weft::state::State::none(1)).expect("memory"));
    let reactor = reactor(true);
    let metrics = Arc::<ReactorMetrics>::default();
    target.set_reactors(vec![reactor.mailbox()]);
    let local = Local::install(&reactor, target.clone(), metrics.clone());
    let listening = Loopback::listen(address).expect("a port");
    let connector = listening.connector();
    reactor.spawn(queue_pair::serve_port::<Loopback>(local, Arc::new(port), listening));
    let (ours, for_host) = (reactor.clone(), metrics.clone());
    reactor.spawn(async move {
        host(&ours, &connector, nqn, &records).await;
        for _ in 0..1000 {
            if for_host.queue_pairs_open.get() == 0 && ours.tasks() == 2 {
                break;
            }
            ours.sleep(Duration::from_millis(10)).await;
        }
        let usage = ours.arena_use();
        assert_eq!((for_host.queue_pairs_open.get(), ours.tasks(), usage.free), (0, 2, usage.total));
        target.stop();
    });
    reactor.run().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(metrics.connections_accepted.get(), metrics.connections_closed.get());
}

async fn connect(connector: &Connector, nqn: &str, qid: u16, controller: u16) -> Option<(HostEnd, u16)> {
    let mut end = connector.connect().ok()?;
    let sqe = ConnectCommand::new(Qid(qid), 32, 1000).encode();
    let host = "nqn.2026-12.io.weft:host".parse().expect("an NQN");
    let data =
        ConnectData::new(HostId([1; 16]), ControllerId(controller), nqn.parse().expect("an NQN"), host);
    end.sender.unbounded_send(FromHost::Command(sqe, data.encode().to_vec())).ok()?;
    match end.receiver.next().await {
        Some(ToHost::Response(cqe, _)) if cqe.status().is_success() => Some((end, cqe.result() as u16)),
        _ => None,
    }
}

async fn host(reactor: &Reactor, connector: &Connector, nqn: &str, mut records: &[u8]) {
    let (admin, controller) = connect(connector, nqn, 0, 0xffff).await.expect("an admin queue");
    let enable = PropertySet { offset: property::CC, size: PropertySize::Four, value: 0x0046_0001 }.encode();
    let _ = admin.sender.unbounded_send(FromHost::Command(enable, Vec::new()));
    reactor.sleep(Duration::from_millis(1)).await;
    let io = connect(connector, nqn, 1, controller).await.map(|(end, _)| end);
    let mut ends: Vec<HostEnd> = [Some(admin), io].into_iter().flatten().collect();
    let mut cid = 0;
    while let Some(([queue, len, fields @ ..], rest)) = records.split_first_chunk::<66>() {
        let mut sqe = Sqe::parse(fields);
        cid += 1;
        sqe.set_cid(Cid(cid));
        let len = usize::from(*len).min(rest.len());
        let (data, rest) = rest.split_at(len);
        records = rest;
        let at = usize::from(*queue) % ends.len();
        let _ = ends[at].sender.unbounded_send(FromHost::Command(sqe, data.to_vec()));
        if queue & 0x80 == 0 {
            reactor.sleep(Duration::from_micros(10)).await;
        }
        ends.iter_mut().for_each(answer);
    }
    reactor.sleep(Duration::from_millis(1)).await;
    ends.iter_mut().for_each(answer);
    reactor.sleep(Duration::from_millis(1)).await;
}

/// Sends what is asked for: zeroes.
fn answer(end: &mut HostEnd) {
    while let Ok(message) = end.receiver.try_recv() {
        if let ToHost::Fetch(_, slot, len) = message {
            let _ = end.sender.unbounded_send(FromHost::Data(slot, vec![0; len]));
        }
    }
}
