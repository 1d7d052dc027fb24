//! Namespace Write Protection Config (feature 84h): hosts make a namespace read-only, for all hosts and until one says
//! otherwise.
//!
//! Base specification, "Namespace Write Protection". The state outlives a power cycle, so the feature is there only with a
//! state directory. There are no states until a power cycle or for ever.
//!
//! The change is made with the whole namespace locked (see [`crate::io::range_lock`]): all writes in flight on all reactors
//! have ended, what they wrote is flushed, and those that come meanwhile wait and find the new state. So when the host has
//! its answer, nothing changes the namespace any more. What fails on the way leaves it as it was.

use crate::{
    controller::Controller,
    namespace::{LocalNamespace, Namespace},
    queue_pair::QueuePair,
};
use backends::BackendQueue;
use futures::channel::oneshot;
use nvme::{
    IoCommand, IoOpcode, Nsid, Sqe, Status,
    features::{SetFeatures, WriteProtection},
};
use std::{sync::Arc, thread};
use transports::QueuePair as TransportQueuePair;

/// It is always about one namespace.
fn find(controller: &Controller, nsid: Nsid) -> Result<&Arc<Namespace>, Status> {
    controller.subsystem.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.dnr())
}

const fn value(protected: bool) -> u32 {
    (if protected { WriteProtection::Protected } else { WriteProtection::None }) as u32
}

/// The state in force.
pub(super) fn current(controller: &Controller, nsid: Nsid) -> Result<u32, Status> {
    Ok(value(find(controller, nsid)?.is_protected()))
}

/// The state before a host says otherwise.
pub(super) fn default(controller: &Controller, nsid: Nsid) -> Result<u32, Status> {
    Ok(value(find(controller, nsid)?.read_only))
}

/// Sets the state.
pub(super) async fn set<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    command: &SetFeatures,
) -> Result<(), Status> {
    let controller = &pair.controller;
    let namespace = find(controller, command.nsid)?;
    let local = pair.namespaces.get(command.nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
    let wanted = match WriteProtection::parse(command.cdw11) {
        Some(WriteProtection::None) => false,
        Some(WriteProtection::Protected) => true,
        _ => return Err(Status::INVALID_FIELD.dnr()),
    };
    if namespace.read_only {
        return if wanted { Ok(()) } else { Err(Status::FEATURE_NOT_CHANGEABLE.dnr()) };
    }
    let writes = local.locks.lock(0, u64::MAX).await;
    if namespace.is_protected() == wanted {
        return Ok(());
    }
    if wanted {
        flush(local).await?;
    }
    keep(pair, namespace, wanted).await?;
    namespace.protect(wanted);
    drop(writes);
    let (nsid, subsystem, host) = (namespace.nsid, &controller.subsystem, &controller.host_nqn);
    let what = if wanted { "write protected" } else { "no longer write protected" };
    tracing::info!(%nsid, subsystem = %subsystem.nqn, %host, "{what}");
    subsystem.namespace_changed(nsid);
    Ok(())
}

/// Brings what was written to stable storage.
async fn flush(namespace: &LocalNamespace) -> Result<(), Status> {
    let sqe = Sqe::new(IoOpcode::Flush.code());
    let (flushed, _) = namespace.queue.execute(&IoCommand::parse(&sqe)?, None).await;
    if flushed.status.is_success() { Ok(()) } else { Err(flushed.status) }
}

/// Keeps the new state, on a thread of its own: it is written to a disk, and rarely.
async fn keep<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    namespace: &Arc<Namespace>,
    protected: bool,
) -> Result<(), Status> {
    let (target, subsystem) = (pair.local.target.clone(), pair.controller.subsystem.clone());
    let (namespace, nsid) = (namespace.clone(), namespace.nsid);
    let (answer, answered) = oneshot::channel();
    let work = move || {
        // The asker may be gone meanwhile.
        let _ = answer.send(target.keep_protection(&subsystem.nqn, &namespace, protected));
    };
    let kept = match thread::Builder::new().name("weft-state".into()).spawn(work) {
        Ok(_) => answered.await,
        Err(error) => Ok(Err(error)),
    };
    match kept {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            tracing::error!(%nsid, "its write protection cannot be kept in the state directory: {error}");
            Err(Status::INTERNAL_ERROR)
        }
        Err(_) => Err(Status::INTERNAL_ERROR),
    }
}
