//! What a device with its own way to memory (an RDMA adapter) needs of a reactor: memory to register, and a look at its
//! completion queues every turn.

use crate::{reactor_loop::Core, shared::Mapping};
use std::{
    ptr,
    rc::{Rc, Weak},
    sync::Arc,
};

/// Memory of an arena, to be registered with a device. It stays mapped as long as this value lives, on whatever thread.
#[derive(Clone)]
pub struct DeviceMemory(Arc<Mapping>);

impl DeviceMemory {
    pub(crate) fn new(mapping: Arc<Mapping>) -> DeviceMemory {
        DeviceMemory(mapping)
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.0.base().expose_provenance() as u64
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `len` bytes at `address` lie inside.
    pub fn contains(&self, address: u64, len: usize) -> bool {
        let offset = address.wrapping_sub(self.address());
        offset.checked_add(len as u64).is_some_and(|end| end <= self.len() as u64)
    }

    fn at(&self, address: u64, len: usize) -> *mut u8 {
        assert!(self.contains(address, len), "an access outside of the memory");
        // SAFETY: inside the mapping, as asserted.
        unsafe { self.0.base().add((address - self.address()) as usize) }
    }

    /// Reads as a device does, which owns the buffers that were posted to it: for stand-ins of devices only.
    ///
    /// # Panics
    /// When the range does not lie inside.
    pub fn read(&self, address: u64, into: &mut [u8]) {
        // SAFETY: inside the mapping (asserted by `at`); whoever posted the buffer does not touch it meanwhile.
        unsafe { ptr::copy_nonoverlapping(self.at(address, into.len()), into.as_mut_ptr(), into.len()) };
    }

    /// Writes as a device does; see [`DeviceMemory::read`].
    ///
    /// # Panics
    /// When the range does not lie inside.
    pub fn write(&self, address: u64, from: &[u8]) {
        // SAFETY: as in `read`.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.at(address, from.len()), from.len()) };
    }
}

/// What the reactor looks at once per turn beside the ring: the completion queue of a device.
pub trait TurnHook {
    /// Takes what has completed; says how much.
    fn poll(&self) -> usize;
    /// Passes on to the device what the tasks of this turn prepared.
    fn flush(&self);
    /// The reactor is about to sleep: asks the device to wake it. Says whether something has completed already.
    fn before_sleep(&self) -> bool;
}

/// A hook in place; it ends with this value.
pub struct HookGuard {
    pub(crate) core: Weak<Core>,
    pub(crate) hook: Rc<dyn TurnHook>,
}

impl Drop for HookGuard {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.hooks.borrow_mut().retain(|hook| !Rc::ptr_eq(hook, &self.hook));
        }
    }
}
