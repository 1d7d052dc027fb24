//! SMART / health (02h): what was read and written since the start. There is nothing that wears, and no thermometer.

use crate::{controller::Controller, namespace::IoTotals, queue_pair::QueuePair};
use nvme::{Nsid, Status, log_page::SmartLog};
use transports::QueuePair as TransportQueuePair;

/// A data unit: a thousand times 512 bytes, rounded up.
const DATA_UNIT: u64 = 512_000;

/// Health of the subsystem, or, as far as reads and writes go, of one namespace.
pub fn page<Q: TransportQueuePair>(pair: &QueuePair<Q>, nsid: Nsid) -> Result<Vec<u8>, Status> {
    let controller = &pair.controller;
    let totals = totals(controller, nsid)?;
    let running = pair.local.target.started.elapsed();
    let wide = |value: u64| u128::from(value).to_le_bytes();
    let mut page = SmartLog::new_zeroed();
    page.available_spare = 100;
    page.data_units_read = wide(totals.read_bytes.div_ceil(DATA_UNIT));
    page.data_units_written = wide(totals.written_bytes.div_ceil(DATA_UNIT));
    page.host_read_commands = wide(totals.reads);
    page.host_write_commands = wide(totals.writes);
    // What was before this process started is not known: it is its first power cycle.
    page.power_cycles = wide(1);
    page.power_on_hours = wide(running.as_secs() / 3600);
    page.error_log_entries = wide(controller.errors.count());
    Ok(page.as_bytes().to_vec())
}

fn totals(controller: &Controller, nsid: Nsid) -> Result<IoTotals, Status> {
    let subsystem = &controller.subsystem;
    if nsid == Nsid::NONE || nsid == Nsid::ALL {
        let all = subsystem.namespaces.iter().map(|namespace| namespace.totals());
        return Ok(all.fold(IoTotals::default(), |sum, one| IoTotals {
            reads: sum.reads + one.reads,
            read_bytes: sum.read_bytes + one.read_bytes,
            writes: sum.writes + one.writes,
            written_bytes: sum.written_bytes + one.written_bytes,
        }));
    }
    subsystem.namespace(nsid).map(|namespace| namespace.totals()).ok_or(Status::INVALID_NAMESPACE.dnr())
}
