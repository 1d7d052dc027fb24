//! The verbs: rdma-core's libibverbs and librdmacm, loaded when first needed, behind the safe trait of `adapter.rs`.
//!
//! All `unsafe` of the transport is here. The structures are generated from rdma-core's headers (`make bindings`) and compared with the
//! installed ones by a test. What verbs.h defines as inline functions (posting, polling, arming) goes through the functions of the
//! device's context, as there.
//!
//! Every object destroys itself when dropped, and keeps what it was made of; the raw pointers are valid until then. The verbs are
//! thread-safe. A context of librdmacm is closed with its last identifier once its device is gone, so that what is made of a
//! context keeps an identifier of its own on the device (*anchor*).

#![allow(unsafe_code, reason = "this file is the fence")]

use super::{
    adapter::{
        CmEvent, DeviceLimits, Done, EndCause, Incoming, Operation, Piece, PostReceive, PostSend, QpSizes,
        Verbs, WorkStatus,
    },
    bindings::{ibverbs::Ibverbs, rdmacm::RdmaCm, types::*},
};
use reactor::{DeviceMemory, system};
use std::{
    ffi::CStr,
    io,
    mem::{MaybeUninit, zeroed},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    os::fd::{BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::{Arc, OnceLock},
};

/// Work requests posted in one call.
const CHAIN: usize = 32;
/// Completions taken in one call.
const POLL: usize = 64;
/// Retries without an answer, and for a receiver that is not ready: without end, for hosts post their receives late.
const RETRIES: u8 = 7;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

struct Libraries {
    verbs: Ibverbs,
    cm: RdmaCm,
}

/// rdma-core.
#[derive(Clone)]
pub struct RdmaCore(&'static Libraries);

fn libraries() -> Result<&'static Libraries, &'static str> {
    static LIBRARIES: OnceLock<Result<Libraries, String>> = OnceLock::new();
    let load = || {
        let missing = |error: libloading::Error| {
            format!(
                "rdma-core cannot be loaded ({error}); on Debian it is in the packages librdmacm1 and ibverbs-providers"
            )
        };
        // SAFETY: these libraries run nothing on loading but the registration of their drivers; the types of the functions are those
        // of their headers (see the test of the layouts), stable by their version in the name.
        let (verbs, cm) = unsafe {
            (
                Ibverbs::new("libibverbs.so.1").map_err(missing)?,
                RdmaCm::new("librdmacm.so.1").map_err(missing)?,
            )
        };
        Ok(Libraries { verbs, cm })
    };
    LIBRARIES.get_or_init(load).as_ref().map_err(String::as_str)
}

/// The result of a function that returns -1 and leaves a reason.
fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The result of a function that returns the reason itself.
fn check_number(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result.abs())) }
}

fn check_pointer<T>(pointer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

fn not_supported() -> io::Error {
    io::ErrorKind::Unsupported.into()
}

/// A descriptor of the library's, doubled so that it has an owner here, and made not to block.
fn double(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: an open descriptor of an object that the caller holds.
    let descriptor = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
    system::set_nonblocking(&descriptor)?;
    Ok(descriptor)
}

macro_rules! object {
    ($(#[$doc:meta])* $name:ident, $raw:ty) => {
        $(#[$doc])*
        pub struct $name {
            raw: NonNull<$raw>,
            library: RdmaCore,
        }

        // SAFETY: the verbs and the connection manager may be called from any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
    };
}

object!(
    /// An event channel.
    RawChannel, rdma_event_channel
);
object!(
    /// An identifier of the connection manager.
    RawId, rdma_cm_id
);
object!(
    /// A protection domain.
    RawDomain, ibv_pd
);
object!(
    /// A completion channel.
    RawCompletionChannel, ibv_comp_channel
);
object!(
    /// A completion queue.
    RawCq, ibv_cq
);
object!(
    /// A shared receive queue.
    RawSrq, ibv_srq
);
object!(
    /// A memory region.
    RawRegion, ibv_mr
);

impl Drop for RawChannel {
    fn drop(&mut self) {
        // SAFETY: its identifiers keep it, so there are none any more.
        unsafe { self.library.0.cm.rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}

impl Drop for RawId {
    fn drop(&mut self) {
        // SAFETY: its queue pair keeps it, so there is none; events are acknowledged as they are read.
        report("an identifier", check(unsafe { self.library.0.cm.rdma_destroy_id(self.raw.as_ptr()) }));
    }
}

impl Drop for RawDomain {
    fn drop(&mut self) {
        // SAFETY: what was made in it keeps it, so there is nothing any more.
        let result = unsafe { self.library.0.verbs.ibv_dealloc_pd(self.raw.as_ptr()) };
        report("a protection domain", check_number(result));
    }
}

impl Drop for RawCompletionChannel {
    fn drop(&mut self) {
        // SAFETY: its completion queue keeps it.
        let result = unsafe { self.library.0.verbs.ibv_destroy_comp_channel(self.raw.as_ptr()) };
        report("a completion channel", check_number(result));
    }
}

impl Drop for RawCq {
    fn drop(&mut self) {
        // SAFETY: its queue pairs keep it; events are acknowledged as they are read.
        let result = unsafe { self.library.0.verbs.ibv_destroy_cq(self.raw.as_ptr()) };
        report("a completion queue", check_number(result));
    }
}

impl Drop for RawSrq {
    fn drop(&mut self) {
        // SAFETY: its queue pairs keep it.
        let result = unsafe { self.library.0.verbs.ibv_destroy_srq(self.raw.as_ptr()) };
        report("a shared receive queue", check_number(result));
    }
}

impl Drop for RawRegion {
    fn drop(&mut self) {
        // SAFETY: the transport drops a region after the queue pairs that use it.
        let result = unsafe { self.library.0.verbs.ibv_dereg_mr(self.raw.as_ptr()) };
        report("a memory region", check_number(result));
    }
}

fn report(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!(%error, "cannot destroy {what}");
    }
}

/// An event channel.
pub struct Channel(Arc<RawChannel>);

/// An identifier; fields are dropped in order.
#[derive(Clone)]
pub struct Id {
    raw: Arc<RawId>,
    _channel: Option<Arc<RawChannel>>,
}

/// A device: the context that librdmacm opened, by an identifier on it.
#[derive(Clone)]
pub struct Device(Id);

/// A protection domain.
#[derive(Clone)]
pub struct Domain {
    raw: Arc<RawDomain>,
    _anchor: Id,
}

/// A memory region, with the memory.
pub struct Region {
    raw: RawRegion,
    _domain: Domain,
    _memory: DeviceMemory,
}

/// A completion queue with its channel.
#[derive(Clone)]
pub struct Cq {
    raw: Arc<RawCq>,
    channel: Arc<RawCompletionChannel>,
    _anchor: Id,
}

/// A shared receive queue.
#[derive(Clone)]
pub struct Srq {
    raw: Arc<RawSrq>,
    _domain: Domain,
}

/// A queue pair.
pub struct Qp {
    raw: NonNull<ibv_qp>,
    id: Id,
    _parents: (Domain, Cq, Option<Srq>),
}

// SAFETY: the verbs may be called from any thread.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: the identifier's own queue pair, made by `rdma_create_qp` and destroyed once.
        unsafe { self.id.raw.library.0.cm.rdma_destroy_qp(self.id.raw.raw.as_ptr()) };
    }
}

impl Id {
    fn new(library: &RdmaCore, channel: Option<&Arc<RawChannel>>) -> io::Result<Id> {
        let mut raw = ptr::null_mut();
        let events = channel.map_or(ptr::null_mut(), |channel| channel.raw.as_ptr());
        // SAFETY: a live channel or none, and a place for the result.
        check(unsafe { library.0.cm.rdma_create_id(events, &mut raw, ptr::null_mut(), RDMA_PS_TCP) })?;
        let raw = Arc::new(RawId { raw: check_pointer(raw)?, library: library.clone() });
        Ok(Id { raw, _channel: channel.cloned() })
    }

    fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let mut raw = encode_address(address);
        // SAFETY: a live identifier, and an address that is read during the call.
        check(unsafe {
            self.raw.library.0.cm.rdma_bind_addr(self.raw.raw.as_ptr(), (&raw mut raw).cast::<sockaddr>())
        })
    }

    fn context(&self) -> io::Result<NonNull<ibv_context>> {
        // SAFETY: a live identifier; the field is set when it got its device and does not change.
        NonNull::new(unsafe { (*self.raw.raw.as_ptr()).verbs })
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "a connection without a device"))
    }

    fn route(&self) -> rdma_addr {
        // SAFETY: a live identifier; addresses are set before it is seen here.
        unsafe { (*self.raw.raw.as_ptr()).route.addr }
    }

    fn local(&self) -> SocketAddr {
        let route = self.route();
        // SAFETY: every variant is plain bytes.
        decode_address(unsafe { &route.__bindgen_anon_1.src_storage })
    }

    /// Another identifier on the same device.
    fn anchor(&self) -> io::Result<Id> {
        let anchor = Id::new(&self.raw.library, None)?;
        let mut address = self.local();
        address.set_port(0);
        anchor.bind(address)?;
        // Two devices may share an address only by mistake; then it would keep the wrong one.
        if anchor.context()? == self.context()? {
            Ok(anchor)
        } else {
            Err(io::ErrorKind::AddrNotAvailable.into())
        }
    }
}

fn encode_address(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: plain bytes, for which all zero is a value.
    let mut raw: sockaddr_storage = unsafe { zeroed() };
    let place = &raw mut raw;
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: the storage is large enough and aligned for every kind of address.
            let place = unsafe { &mut *place.cast::<sockaddr_in>() };
            place.sin_family = AF_INET;
            place.sin_port = v4.port().to_be();
            place.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let place = unsafe { &mut *place.cast::<sockaddr_in6>() };
            place.sin6_family = AF_INET6;
            place.sin6_port = v6.port().to_be();
            place.sin6_scope_id = v6.scope_id();
            // SAFETY: the address is 16 plain bytes.
            unsafe { (&raw mut place.sin6_addr).cast::<[u8; 16]>().write(v6.ip().octets()) };
        }
    }
    raw
}

fn decode_address(raw: &sockaddr_storage) -> SocketAddr {
    let place = ptr::from_ref(raw);
    if raw.ss_family == AF_INET6 {
        // SAFETY: the storage holds an address of this kind.
        let v6 = unsafe { &*place.cast::<sockaddr_in6>() };
        // SAFETY: the address is 16 plain bytes.
        let octets = unsafe { (&raw const v6.sin6_addr).cast::<[u8; 16]>().read() };
        let port = u16::from_be(v6.sin6_port);
        SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, v6.sin6_scope_id).into()
    } else {
        // SAFETY: as above; of other kinds (InfiniBand's own) it makes some address, which only names the peer in logs.
        let v4 = unsafe { &*place.cast::<sockaddr_in>() };
        let ip = IpAddr::V4(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()));
        SocketAddr::new(ip, u16::from_be(v4.sin_port))
    }
}

fn status(raw: ibv_wc_status) -> WorkStatus {
    match raw {
        IBV_WC_SUCCESS => WorkStatus::Success,
        IBV_WC_WR_FLUSH_ERR => WorkStatus::Flushed,
        IBV_WC_LOC_QP_OP_ERR => WorkStatus::LocalOperation,
        IBV_WC_REM_ACCESS_ERR => WorkStatus::RemoteAccess,
        IBV_WC_RETRY_EXC_ERR | IBV_WC_RNR_RETRY_EXC_ERR => WorkStatus::RetryExceeded,
        other => WorkStatus::Other(other),
    }
}

fn sge(piece: &Piece) -> ibv_sge {
    ibv_sge { addr: piece.address, length: piece.len, lkey: piece.key }
}

/// Links receives and posts them, some at a time.
fn post_receives(
    receives: &[PostReceive],
    mut post: impl FnMut(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32,
) -> io::Result<()> {
    for chunk in receives.chunks(CHAIN) {
        // SAFETY: plain structures of numbers and pointers, for which all zero is a value.
        let (mut requests, mut pieces): ([ibv_recv_wr; CHAIN], [[ibv_sge; 2]; CHAIN]) =
            unsafe { (zeroed(), zeroed()) };
        let first = requests.as_mut_ptr();
        for (index, receive) in chunk.iter().enumerate() {
            pieces[index] = [sge(&receive.pieces[0]), sge(&receive.pieces[1])];
            let used = receive.pieces.iter().filter(|piece| piece.len > 0).count();
            let is_last = index + 1 == chunk.len();
            // SAFETY: within the array, which outlives the call.
            unsafe {
                *first.add(index) = ibv_recv_wr {
                    wr_id: receive.id,
                    next: if is_last { ptr::null_mut() } else { first.add(index + 1) },
                    sg_list: pieces[index].as_mut_ptr(),
                    num_sge: used as i32,
                };
            }
        }
        let mut bad = ptr::null_mut();
        check_number(post(first, &mut bad))?;
    }
    Ok(())
}

/// A work request for the send queue, not linked yet.
fn send_request(send: &PostSend, piece: *mut ibv_sge) -> ibv_send_wr {
    // SAFETY: a plain structure of numbers and pointers, for which all zero is a value.
    let mut request: ibv_send_wr = unsafe { zeroed() };
    request.wr_id = send.id;
    request.sg_list = piece;
    request.num_sge = 1;
    request.send_flags = if send.tells { IBV_SEND_SIGNALED } else { 0 };
    match send.operation {
        Operation::Read { address, key } | Operation::Write { address, key } => {
            let is_read = matches!(send.operation, Operation::Read { .. });
            request.opcode = if is_read { IBV_WR_RDMA_READ } else { IBV_WR_RDMA_WRITE };
            request.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: address, rkey: key };
        }
        Operation::Send => {
            request.opcode = IBV_WR_SEND;
            request.send_flags |= IBV_SEND_SOLICITED;
        }
        Operation::SendInvalidate { key } => {
            request.opcode = IBV_WR_SEND_WITH_INV;
            request.send_flags |= IBV_SEND_SOLICITED;
            request.__bindgen_anon_1.invalidate_rkey = key;
        }
    }
    request
}

impl Verbs for RdmaCore {
    type Channel = Channel;
    type Id = Id;
    type Device = Device;
    type Domain = Domain;
    type Region = Region;
    type Cq = Cq;
    type Srq = Srq;
    type Qp = Qp;

    fn load() -> io::Result<RdmaCore> {
        libraries().map(RdmaCore).map_err(|why| io::Error::new(io::ErrorKind::Unsupported, why))
    }

    fn listen(&self, address: SocketAddr, backlog: u32) -> io::Result<(Channel, Id)> {
        // SAFETY: no arguments.
        let raw = check_pointer(unsafe { self.0.cm.rdma_create_event_channel() })?;
        let channel = Arc::new(RawChannel { raw, library: self.clone() });
        let id = Id::new(self, Some(&channel))?;
        id.bind(address)?;
        // SAFETY: a live identifier that is bound.
        check(unsafe { self.0.cm.rdma_listen(id.raw.raw.as_ptr(), backlog.cast_signed()) })?;
        Ok((Channel(channel), id))
    }

    fn channel_descriptor(channel: &Channel) -> io::Result<OwnedFd> {
        // SAFETY: a live channel, whose descriptor does not change.
        double(unsafe { channel.0.raw.as_ref().fd })
    }

    fn next_event(channel: &Channel) -> io::Result<Option<CmEvent<RdmaCore>>> {
        let library = &channel.0.library;
        let mut event = ptr::null_mut();
        // SAFETY: a live channel, and a place for the result.
        match check(unsafe { library.0.cm.rdma_get_cm_event(channel.0.raw.as_ptr(), &mut event) }) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            result => result?,
        }
        // SAFETY: an event that was just handed over; the union's variant is that of connections.
        let (id, kind, param) = unsafe { ((*event).id, (*event).event, (*event).param.conn) };
        let key = id.expose_provenance() as u64;
        let private_data = if param.private_data.is_null() || kind != RDMA_CM_EVENT_CONNECT_REQUEST {
            Vec::new()
        } else {
            let len = usize::from(param.private_data_len);
            // SAFETY: so many bytes, until the event is acknowledged.
            unsafe { std::slice::from_raw_parts(param.private_data.cast::<u8>(), len) }.to_vec()
        };
        // SAFETY: handed over above, acknowledged once, not looked at again.
        unsafe { library.0.cm.rdma_ack_cm_event(event) };
        Ok(Some(match kind {
            RDMA_CM_EVENT_CONNECT_REQUEST => {
                let raw = Arc::new(RawId { raw: check_pointer(id)?, library: library.clone() });
                let id = Id { raw, _channel: Some(channel.0.clone()) };
                CmEvent::Request(Incoming { id, private_data, host_serves: param.initiator_depth })
            }
            RDMA_CM_EVENT_ESTABLISHED => CmEvent::Established(key),
            RDMA_CM_EVENT_DISCONNECTED | RDMA_CM_EVENT_TIMEWAIT_EXIT => {
                CmEvent::Ended(key, EndCause::Disconnected)
            }
            RDMA_CM_EVENT_ADDR_CHANGE => CmEvent::Ended(key, EndCause::AddressChange),
            RDMA_CM_EVENT_CONNECT_ERROR | RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_REJECTED => {
                CmEvent::Ended(key, EndCause::Failed)
            }
            RDMA_CM_EVENT_DEVICE_REMOVAL => CmEvent::DeviceRemoval(key),
            _ => CmEvent::Other,
        }))
    }

    fn key(id: &Id) -> u64 {
        id.raw.raw.as_ptr().expose_provenance() as u64
    }

    fn local_address(id: &Id) -> SocketAddr {
        id.local()
    }

    fn peer_address(id: &Id) -> SocketAddr {
        let route = id.route();
        // SAFETY: every variant is plain bytes.
        decode_address(unsafe { &route.__bindgen_anon_2.dst_storage })
    }

    fn device(id: &Id) -> io::Result<Device> {
        id.context().map(|_| Device(id.clone()))
    }

    fn reject(id: &Id, private_data: &[u8]) -> io::Result<()> {
        let len = u8::try_from(private_data.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a live identifier, and bytes that are read during the call.
        check(unsafe {
            id.raw.library.0.cm.rdma_reject(id.raw.raw.as_ptr(), private_data.as_ptr().cast(), len)
        })
    }

    fn accept(id: &Id, reads: u8, private_data: &[u8]) -> io::Result<()> {
        let mut param = rdma_conn_param {
            private_data: private_data.as_ptr().cast(),
            private_data_len: u8::try_from(private_data.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
            responder_resources: 0,
            initiator_depth: reads,
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            srq: 0,
            qp_num: 0,
        };
        // SAFETY: a live identifier with a queue pair of its own; the parameters are read during the call.
        check(unsafe { id.raw.library.0.cm.rdma_accept(id.raw.raw.as_ptr(), &mut param) })
    }

    fn disconnect(id: &Id) -> io::Result<()> {
        // SAFETY: a live identifier.
        check(unsafe { id.raw.library.0.cm.rdma_disconnect(id.raw.raw.as_ptr()) })
    }

    fn device_key(device: &Device) -> u64 {
        device.0.context().map_or(0, |context| context.as_ptr().expose_provenance() as u64)
    }

    fn limits(device: &Device) -> io::Result<DeviceLimits> {
        let context = device.0.context()?;
        let library = &device.0.raw.library;
        let mut raw = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: a live context, and a place for the result; all zero is a value of it.
        check_number(unsafe { library.0.verbs.ibv_query_device(context.as_ptr(), raw.as_mut_ptr()) })?;
        // SAFETY: initialised, as above.
        let raw = unsafe { raw.assume_init() };
        // SAFETY: a live context has a device with a name.
        let name = unsafe { CStr::from_ptr(library.0.verbs.ibv_get_device_name(context.as_ref().device)) };
        let number = |value: i32| value.max(0).cast_unsigned();
        Ok(DeviceLimits {
            name: name.to_string_lossy().into_owned(),
            max_work_requests: number(raw.max_qp_wr),
            max_completions: number(raw.max_cqe),
            max_shared_receives: if raw.max_srq_sge >= 2 { number(raw.max_srq_wr) } else { 0 },
            max_pieces: number(raw.max_sge),
            max_reads: number(raw.max_qp_init_rd_atom).min(255) as u8,
            can_invalidate: raw.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS != 0,
        })
    }

    fn domain(device: &Device) -> io::Result<Domain> {
        let (library, anchor) = (&device.0.raw.library, device.0.anchor()?);
        // SAFETY: a live context, kept by the anchor.
        let raw = check_pointer(unsafe { library.0.verbs.ibv_alloc_pd(anchor.context()?.as_ptr()) })?;
        Ok(Domain { raw: Arc::new(RawDomain { raw, library: library.clone() }), _anchor: anchor })
    }

    fn completion_queue(device: &Device, entries: u32, vector: u32) -> io::Result<Cq> {
        let (library, anchor) = (&device.0.raw.library, device.0.anchor()?);
        let context = anchor.context()?;
        // SAFETY: a live context, kept by the anchor.
        let raw = check_pointer(unsafe { library.0.verbs.ibv_create_comp_channel(context.as_ptr()) })?;
        let channel = Arc::new(RawCompletionChannel { raw, library: library.clone() });
        // SAFETY: a live context.
        let vectors = unsafe { context.as_ref().num_comp_vectors }.max(1);
        let vector = vector.cast_signed().rem_euclid(vectors);
        // SAFETY: live objects; nothing is passed to be kept but the channel, which outlives the queue.
        let raw = check_pointer(unsafe {
            library.0.verbs.ibv_create_cq(
                context.as_ptr(),
                entries.cast_signed(),
                ptr::null_mut(),
                channel.raw.as_ptr(),
                vector,
            )
        })?;
        Ok(Cq { raw: Arc::new(RawCq { raw, library: library.clone() }), channel, _anchor: anchor })
    }

    fn register(domain: &Domain, memory: &DeviceMemory) -> io::Result<Region> {
        let library = &domain.raw.library;
        let address = ptr::with_exposed_provenance_mut(memory.address() as usize);
        let access = IBV_ACCESS_LOCAL_WRITE.cast_signed();
        // SAFETY: memory that stays mapped as long as the region keeps it.
        let raw =
            unsafe { library.0.verbs.ibv_reg_mr(domain.raw.raw.as_ptr(), address, memory.len(), access) };
        let raw = check_pointer(raw).map_err(|error| {
            let why = format!(
                "{} MiB of memory cannot be registered ({error}): raise the limit for locked memory (`ulimit -l`, LimitMEMLOCK= in \
                 the unit) or lower `reactors.buffers`",
                memory.len().div_ceil(1 << 20)
            );
            io::Error::new(error.kind(), why)
        })?;
        let raw = RawRegion { raw, library: library.clone() };
        Ok(Region { raw, _domain: domain.clone(), _memory: memory.clone() })
    }

    fn region_key(region: &Region) -> u32 {
        // SAFETY: a live region.
        unsafe { region.raw.raw.as_ref().lkey }
    }

    fn shared_receives(domain: &Domain, entries: u32) -> io::Result<Srq> {
        let library = &domain.raw.library;
        let attr = ibv_srq_attr { max_wr: entries, max_sge: 2, srq_limit: 0 };
        let mut attributes = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: a live domain; the attributes are read and written during the call.
        let raw = unsafe { library.0.verbs.ibv_create_srq(domain.raw.raw.as_ptr(), &mut attributes) };
        let raw = Arc::new(RawSrq { raw: check_pointer(raw)?, library: library.clone() });
        Ok(Srq { raw, _domain: domain.clone() })
    }

    fn queue_pair(id: &Id, domain: &Domain, cq: &Cq, srq: Option<&Srq>, sizes: QpSizes) -> io::Result<Qp> {
        let mut attributes = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: cq.raw.raw.as_ptr(),
            recv_cq: cq.raw.raw.as_ptr(),
            srq: srq.map_or(ptr::null_mut(), |srq| srq.raw.raw.as_ptr()),
            cap: ibv_qp_cap {
                max_send_wr: sizes.sends,
                max_recv_wr: sizes.receives,
                max_send_sge: 1,
                max_recv_sge: if srq.is_some() { 0 } else { 2 },
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let raw_id = id.raw.raw.as_ptr();
        // SAFETY: live objects, all kept by the queue pair.
        check(unsafe {
            id.raw.library.0.cm.rdma_create_qp(raw_id, domain.raw.raw.as_ptr(), &mut attributes)
        })?;
        // SAFETY: the call has set it.
        let raw = check_pointer(unsafe { (*raw_id).qp })?;
        Ok(Qp { raw, id: id.clone(), _parents: (domain.clone(), cq.clone(), srq.cloned()) })
    }

    fn number(qp: &Qp) -> u32 {
        // SAFETY: a live queue pair.
        unsafe { qp.raw.as_ref().qp_num }
    }

    fn post_receives(qp: &Qp, receives: &[PostReceive]) -> io::Result<()> {
        let raw = qp.raw.as_ptr();
        // SAFETY: a live queue pair, whose context does not change.
        let post = unsafe { (*(*raw).context).ops.post_recv }.ok_or_else(not_supported)?;
        // SAFETY: a list of requests that is read during the call.
        post_receives(receives, |first, bad| unsafe { post(raw, first, bad) })
    }

    fn post_shared(srq: &Srq, receives: &[PostReceive]) -> io::Result<()> {
        let raw = srq.raw.raw.as_ptr();
        // SAFETY: a live queue, whose context does not change.
        let post = unsafe { (*(*raw).context).ops.post_srq_recv }.ok_or_else(not_supported)?;
        // SAFETY: a list of requests that is read during the call.
        post_receives(receives, |first, bad| unsafe { post(raw, first, bad) })
    }

    fn post_sends(qp: &Qp, sends: &[PostSend]) -> io::Result<()> {
        let raw = qp.raw.as_ptr();
        // SAFETY: a live queue pair, whose context does not change.
        let post = unsafe { (*(*raw).context).ops.post_send }.ok_or_else(not_supported)?;
        for chunk in sends.chunks(CHAIN) {
            let mut pieces = [ibv_sge { addr: 0, length: 0, lkey: 0 }; CHAIN];
            let mut requests = [const { MaybeUninit::<ibv_send_wr>::uninit() }; CHAIN];
            let first = requests.as_mut_ptr().cast::<ibv_send_wr>();
            for (index, send) in chunk.iter().enumerate() {
                pieces[index] = sge(&send.piece);
                let mut request = send_request(send, &raw mut pieces[index]);
                if index + 1 < chunk.len() {
                    // SAFETY: within the array.
                    request.next = unsafe { first.add(index + 1) };
                }
                requests[index].write(request);
            }
            let mut bad = ptr::null_mut();
            // SAFETY: a list of requests that is read during the call.
            check_number(unsafe { post(raw, first, &mut bad) })?;
        }
        Ok(())
    }

    fn cq_descriptor(cq: &Cq) -> io::Result<OwnedFd> {
        // SAFETY: a live channel, whose descriptor does not change.
        double(unsafe { cq.channel.raw.as_ref().fd })
    }

    fn poll(cq: &Cq, into: &mut [Done]) -> usize {
        let raw = cq.raw.raw.as_ptr();
        // SAFETY: a live queue, whose context does not change.
        let Some(poll) = (unsafe { (*(*raw).context).ops.poll_cq }) else { return 0 };
        let mut found = [const { MaybeUninit::<ibv_wc>::uninit() }; POLL];
        let most = into.len().min(POLL);
        // SAFETY: places for as many results as are asked for.
        let count = unsafe { poll(raw, most as i32, found.as_mut_ptr().cast()) };
        let count = usize::try_from(count).unwrap_or(0).min(most);
        for (place, found) in into.iter_mut().zip(&found[..count]) {
            let found = found.as_ptr();
            // SAFETY: so many were filled; of failed ones only these fields mean something, but all are plain numbers.
            *place = unsafe {
                Done {
                    id: (*found).wr_id,
                    status: status((*found).status),
                    len: if (*found).status == IBV_WC_SUCCESS { (*found).byte_len } else { 0 },
                    number: (*found).qp_num,
                }
            };
        }
        count
    }

    fn arm(cq: &Cq) -> io::Result<()> {
        let raw = cq.raw.raw.as_ptr();
        // SAFETY: a live queue, whose context does not change.
        let arm = unsafe { (*(*raw).context).ops.req_notify_cq }.ok_or_else(not_supported)?;
        // SAFETY: a live queue.
        check_number(unsafe { arm(raw, 0) })
    }

    fn acknowledge(cq: &Cq) {
        let library = &cq.raw.library;
        let mut events = 0;
        loop {
            let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
            let channel = cq.channel.raw.as_ptr();
            // SAFETY: a live channel that does not block, and places for the results.
            if unsafe { library.0.verbs.ibv_get_cq_event(channel, &mut queue, &mut context) } != 0 {
                break;
            }
            events += 1;
        }
        if events > 0 {
            // SAFETY: the channel's only queue, and as many as were taken.
            unsafe { library.0.verbs.ibv_ack_cq_events(cq.raw.raw.as_ptr(), events) };
        }
    }

    fn resize(cq: &Cq, entries: u32) -> io::Result<()> {
        // SAFETY: a live queue.
        let result =
            unsafe { cq.raw.library.0.verbs.ibv_resize_cq(cq.raw.raw.as_ptr(), entries.cast_signed()) };
        check_number(result)
    }
}
