//! The way in for fuzzers: any bytes as the stream of a queue pair, without a socket.

use super::{
    super::{connection::Negotiated, pdu::Digests},
    Fetch, Inner, Receiver,
};
use crate::QueueParameters;
use nvme::{Qid, SglKind, Status};
use reactor::{BufferClass, Reactor};
use std::{os::unix::net::UnixStream, time::Duration};

/// The most data that is asked for.
const MAX_DATA: usize = 64 << 10;

/// Takes in a stream. Its first byte says what was negotiated, the second in pieces of which size it arrives. `true` when it
/// was right to its end.
///
/// # Panics
/// When something from the wire does what it must not.
pub fn stream(reactor: &Reactor, input: &[u8]) -> bool {
    let [settings, piece, bytes @ ..] = input else { return true };
    let slots = u16::from(settings >> 3 & 7) + 1;
    let parameters = QueueParameters {
        qid: Qid(u16::from(settings >> 2 & 1)),
        slots,
        sq_entries: u32::from(slots),
        in_capsule: 4096,
        sq_flow_control: false,
        stall_time: Duration::from_secs(1),
    };
    let digests = Digests { header: settings & 1 != 0, data: settings & 2 != 0 };
    let negotiated = Negotiated { digests, host_alignment: 4, max_host_data: MAX_DATA };
    let (socket, _peer) = UnixStream::pair().expect("a pair of sockets");
    let inner = Inner::new(socket.into(), negotiated, reactor, parameters).expect("memory for a reserve");
    inner.slots.borrow_mut().free.extend(0..slots);
    let mut receiver = Receiver::new(&inner);
    let piece = if *piece == 0 { usize::MAX } else { usize::from(*piece) };
    for bytes in bytes.chunks(piece.min(bytes.len()).max(1)) {
        match receiver.consume(bytes) {
            Ok(used) => assert_eq!(used, bytes.len(), "there are enough data buffers"),
            Err(_) => {
                assert!(!receiver.offending().is_empty(), "a header to report");
                return false;
            }
        }
        execute(&inner, reactor);
    }
    true
}

/// What the slots would do: commands whose data is to be fetched wait for it, the others are over at once.
fn execute(inner: &Inner, reactor: &Reactor) {
    let mut slots = inner.slots.borrow_mut();
    for slot in 0..inner.parameters.slots {
        let state = &mut slots.all[usize::from(slot)];
        let over = match state.capsule.take() {
            Some(capsule) => {
                let wanted = capsule.sqe.sgl();
                let len = wanted.length as usize;
                if let Ok(Some(data)) = &capsule.data {
                    assert_eq!(data.len(), len, "in-capsule data has the length its descriptor says");
                }
                let fetches = wanted.kind == SglKind::Transport && (1..=MAX_DATA).contains(&len);
                let buffer = fetches.then(|| reactor.try_buffer(len, BufferClass::Admin)).flatten();
                match buffer {
                    Some(buffer) => {
                        state.fetch = Fetch::Active {
                            cid: capsule.sqe.cid(),
                            buffer: Some(buffer),
                            total: len,
                            received: 0,
                            since: reactor.now(),
                            failed: None,
                        };
                        false
                    }
                    None => true,
                }
            }
            None => match &state.fetch {
                Fetch::Done(result) => {
                    let right = result.as_ref().map_or_else(
                        |status| *status == Status::TRANSIENT_TRANSPORT_ERROR,
                        |data| (1..=MAX_DATA).contains(&data.len()),
                    );
                    assert!(right, "fetched data or a digest error");
                    state.fetch = Fetch::Idle;
                    true
                }
                _ => false,
            },
        };
        if over {
            slots.free.push(slot);
        }
    }
}
