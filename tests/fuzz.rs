//! A seeded fuzzer against the running program: right handshakes, then wrong, mutated and badly timed PDUs. Whatever it
//! sends, others are served, the program lives, and in the end everything is counted to zero.
//!
//! `FUZZ_SECONDS` sets how long (10 by default), `FUZZ_SEED` where it begins; a failure names the seed of its session.

mod entries;

use crate::host::target::{TempDir, namespace, one_memory};
use crate::host::*;
use crate::hostile::Bystander;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

const FUZZ_NQN: &str = "nqn.2026-12.io.weft:fuzz";
const HOST_NQN: &str = "nqn.2026-12.io.weft:fuzzer";

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// A command that could almost be right.
fn command(random: &mut Random, admin: bool, digests: Digests) -> Vec<u8> {
    let opcodes: &[u8] = if admin {
        &[0x02, 0x06, 0x08, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x7f, 0x7f, 0x00, 0x05, 0x14, 0xc0]
    } else {
        &[0x00, 0x01, 0x01, 0x02, 0x02, 0x04, 0x05, 0x08, 0x09, 0x0c, 0x19, 0x19, 0x0d, 0x7f, 0x79]
    };
    let mut sqe = [0; 64];
    sqe[40..].copy_from_slice(&random.bytes(24));
    sqe[0] = random.of(opcodes);
    // The first and the second of a fused pair among them.
    sqe[1] = random.of(&[0x40, 0x40, 0x40, 0x40, 0x40, 0x00, 0x41, 0x42, 0xc2]);
    // Few identifiers, so that aborts find commands and some are used twice.
    let cid = random.of(&[random.0 as u16, random.0 as u16 % 40]);
    sqe[2..4].copy_from_slice(&cid.to_le_bytes());
    sqe[4..8].copy_from_slice(&random.of(&[0, 1, 2, 3, 4, 5, 0x0100_0000, u32::MAX]).to_le_bytes());
    if admin && sqe[0] == 0x08 {
        let (queue, command) = (random.below(5) as u32, random.below(40) as u32);
        sqe[40..44].copy_from_slice(&(queue | command << 16).to_le_bytes());
    }
    if admin && sqe[0] == 0x7f {
        // Properties: the configuration among them, with resets and shutdowns.
        sqe[4] = random.of(&[0, 0, 4, 1, 5]);
        sqe[44..48].copy_from_slice(&random.of(&[0_u32, 0x08, 0x14, 0x14, 0x1c, 0x20]).to_le_bytes());
        sqe[48..52]
            .copy_from_slice(&random.of(&[0x0046_0001_u32, 0x0046_0000, 0x0046_4001, 0]).to_le_bytes());
    }
    let lba = random.of(&[0, 1, 63, 16_383, 16_384, 1 << 40, u64::MAX]);
    let blocks = random.of(&[0_u32, 1, 7, 15, 255, 0xffff]);
    if !admin && !random.one_in(4) {
        sqe[40..48].copy_from_slice(&lba.to_le_bytes());
        sqe[48..52].copy_from_slice(&(blocks | random.of(&[0, 1 << 25, 1 << 30])).to_le_bytes());
    }
    let data = if random.one_in(3) { random.below(8193) } else { 0 };
    let right = (blocks as usize + 1) * 4096;
    let length = random.of(&[data, data, right, 4096, 16, 0, 1 << 30]) as u32;
    sqe[32..36].copy_from_slice(&length.to_le_bytes());
    sqe[39] = if data > 0 { 0x01 } else { random.of(&[0x5a, 0x5a, 0x5a, 0x01, 0x40, 0x4f, 0x00, 0x23]) };
    pdu::capsule(digests, &sqe, &random.bytes(data))
}

/// Any PDU, most of them with something wrong.
fn any_pdu(random: &mut Random, admin: bool, digests: Digests) -> Vec<u8> {
    let mut bytes = match random.below(20) {
        0 => pdu::icreq(Wire::default()),
        1 => {
            let mut header = vec![0; 24];
            header[0] = 0x02;
            pdu::assemble(Digests::NONE, header, &random.bytes(24))
        }
        2 => {
            let len = random.below(300);
            random.bytes(len)
        }
        3..=5 => {
            let (len, last) = (random.of(&[1, 4, 512, 4096, 65_536]), random.one_in(2));
            let (cid, tag, at) =
                (random.next() as u16, random.below(70) as u16, random.of(&[0, 0, 512, 1 << 20]));
            pdu::h2c_data(digests, cid, tag, at, &random.bytes(len), last)
        }
        _ => command(random, admin, digests),
    };
    if random.one_in(6) && !bytes.is_empty() {
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len().min(100));
            bytes[at] ^= 1 << random.below(8);
        }
    }
    if random.one_in(25) {
        bytes.truncate(random.below(bytes.len() + 1));
    }
    bytes
}

fn connection(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_secs(2)))?;
    Ok(stream)
}

/// ICReq and Connect, both right; DW0 of the answer.
fn greet(stream: &mut TcpStream, digests: Digests, connect: &Connect) -> io::Result<u32> {
    stream.write_all(&pdu::icreq(Wire { digests, ..Wire::default() }))?;
    stream.read_exact(&mut [0; 128])?;
    ask(stream, digests, &connect.command())
}

fn ask(stream: &mut TcpStream, digests: Digests, command: &Command) -> io::Result<u32> {
    let (sqe, in_capsule) = command.encode(1, 8192);
    stream.write_all(&pdu::capsule(digests, &sqe, if in_capsule { &command.data } else { &[] }))?;
    let mut response = vec![0; 24 + digests.header_bytes()];
    stream.read_exact(&mut response)?;
    Ok(u32_at(&response, 8))
}

/// A queue pair under fire.
struct Victim {
    stream: TcpStream,
    admin: bool,
    /// PDUs held back, to come later or in another order.
    held: Vec<Vec<u8>>,
}

impl Victim {
    /// Sends PDUs as they are, twice, late, in another order, together, or in pieces with a pause in between.
    fn send(&mut self, random: &mut Random, bytes: Vec<u8>) -> io::Result<()> {
        match random.below(12) {
            0 => self.held.push(bytes),
            1 => {
                self.stream.write_all(&bytes)?;
                self.stream.write_all(&bytes)?;
            }
            2 => {
                let at = random.below(bytes.len() + 1);
                self.stream.write_all(&bytes[..at])?;
                if random.one_in(3) {
                    std::thread::sleep(Duration::from_millis(random.below(4) as u64));
                }
                self.stream.write_all(&bytes[at..])?;
            }
            3 => {
                self.held.push(bytes);
                let first = random.below(self.held.len());
                self.held.rotate_left(first);
                let together = std::mem::take(&mut self.held).concat();
                self.stream.write_all(&together)?;
            }
            _ => self.stream.write_all(&bytes)?,
        }
        Ok(())
    }
}

/// One fuzzing host: errors only say that the target ended the connection, which is its right.
fn session(address: SocketAddr, random: &mut Random) -> io::Result<()> {
    let mut admin = connection(address)?;
    if random.one_in(8) {
        let len = random.below(700);
        return admin.write_all(&random.bytes(len));
    }
    let digests = Digests { header: random.one_in(2), data: random.one_in(2) };
    let discovery = random.one_in(6);
    let mut connect = Connect {
        qid: 0,
        sqsize: 31,
        cattr: random.of(&[0, 4]),
        kato_ms: random.of(&[0, 1, 5000, u32::MAX]),
        hostid: [7; 16],
        cntlid: 0xffff,
        subnqn: if discovery { DISCOVERY_NQN } else { FUZZ_NQN }.to_owned(),
        hostnqn: HOST_NQN.to_owned(),
    };
    connect.cntlid = greet(&mut admin, digests, &connect)? as u16;
    ask(&mut admin, digests, &Command::property_set(0x14, 0x0046_0001))?;
    let mut victims = Vec::new();
    for qid in 1..=random.below(4) as u16 {
        let mut stream = connection(address)?;
        connect.qid = qid;
        connect.sqsize = random.of(&[1, 7, 63, 127]);
        greet(&mut stream, digests, &connect)?;
        victims.push(Victim { stream, admin: false, held: Vec::new() });
    }
    if victims.is_empty() || random.one_in(2) {
        victims.push(Victim { stream: admin.try_clone()?, admin: true, held: Vec::new() });
    }
    for victim in &victims {
        victim.stream.set_read_timeout(Some(Duration::from_millis(1)))?;
    }
    let mut sink = vec![0; 64 << 10];
    for _ in 0..=random.below(60 * victims.len()) {
        let at = random.below(victims.len());
        let bytes = any_pdu(random, victims[at].admin, digests);
        let sent = victims[at].send(random, bytes);
        let over = sent.is_err() || random.one_in(4) && matches!(victims[at].stream.read(&mut sink), Ok(0));
        if over {
            victims.swap_remove(at);
        }
        if victims.is_empty() || random.one_in(150) {
            break;
        }
    }
    // The queues end in any order, some by their host's last word, some without one.
    while !victims.is_empty() {
        let mut victim = victims.swap_remove(random.below(victims.len()));
        if random.one_in(2) {
            victim.stream.shutdown(Shutdown::Write)?;
            while matches!(victim.stream.read(&mut sink), Ok(n) if n > 0) {}
        }
    }
    Ok(())
}

fn open_descriptors(target: &Target) -> usize {
    fs::read_dir(format!("/proc/{}/fd", target.pid())).expect("its descriptors").count()
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn whatever_is_sent_others_are_served_and_nothing_stays_behind() {
    let directory = TempDir::new();
    let path = format!("path = \"{}\"", directory.join("fuzz.img").display());
    let namespaces = [
        namespace(1, "memory", 4096, "64 MiB", ""),
        namespace(2, "file", 4096, "64 MiB", &path),
        namespace(3, "null", 4096, "64 MiB", ""),
        namespace(4, "memory", 4096, "64 MiB", ""),
        "[subsystem.namespace.faults]\nmax_delay_us = 3000\nerror_one_in = 9\nhang_one_in = 50\nhang_ms = 300\n".to_owned(),
    ]
    .concat();
    let limits = "[limits]\nhandshake_timeout_ms = 500\ndata_timeout_ms = 500\n[reactors]\ncount = 2\nbuffers = \"8 MiB\"\n";
    let rest = format!(
        "{limits}{}\n[[subsystem]]\nnqn = \"{FUZZ_NQN}\"\nallow_any_host = true\n{namespaces}",
        one_memory()
    );
    let target = Target::configured_in(directory, &rest);
    let (seconds, seed) = (setting("FUZZ_SECONDS", 10), setting("FUZZ_SEED", 20_261_201));
    run_for(Duration::from_secs(seconds + 60), async {
        let bystander = Bystander::arrive(&target).await?;
        let descriptors = open_descriptors(&target);
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut sessions = 0;
        while Instant::now() < end {
            let seed = seed + sessions;
            // How the target ends a session is its business; that it serves on is ours.
            let _ = session(target.address, &mut Random(seed));
            sessions += 1;
            if sessions % 8 == 0 {
                bystander.works().await.inspect_err(|_| eprintln!("after the session of seed {seed}"))?;
            }
        }
        println!("{sessions} sessions from seed {seed}");
        assert!(sessions > 10, "only {sessions} sessions");
        bystander.works().await?;
        bystander.is_alone(&target).await?;
        for nothing in ["weft_orphaned_operations", "weft_buffer_used_bytes"] {
            target.metric_becomes(nothing, &[], 0.0).await?;
        }
        target.metric_becomes("weft_queue_pairs_open", &[], 2.0).await?;
        // Each reactor opened its queue to the file when the first host came.
        until("descriptors are closed", || open_descriptors(&target) <= descriptors + 2).await?;
        assert!(!target.log().contains("panicked"));
        Ok(())
    });
    target.stop();
}

/// What fuzzing found interesting (`make fuzz`), once more: the same functions, without libFuzzer.
#[test]
fn the_corpus_does_no_harm() {
    for (name, entry) in entries::ALL {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(name);
        let mut inputs: Vec<_> =
            fs::read_dir(&folder).expect("a corpus").map(|input| input.expect("an input").path()).collect();
        inputs.sort();
        assert!(inputs.len() >= 2, "{} is almost empty", folder.display());
        for input in inputs {
            println!("{}", input.display());
            entry(&fs::read(&input).expect("an input"));
        }
    }
}
