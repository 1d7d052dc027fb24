//! Dataset Management: deallocates ranges.
//!
//! NVM command set specification, "Dataset Management command". All ranges are checked before the first is touched; other
//! attributes are hints that nothing follows from. Hosts may send more bytes than the ranges take (Linux always sends 4096).
//! There are no limits but the 256 ranges of a command (DMRL, DMRSL and DMSL are 0): backends go through large ranges in pieces.

use super::{Failure, check_size, data_in};
use crate::{
    namespace::LocalNamespace,
    queue_pair::{self, QueuePair},
};
use backends::BackendQueue;
use nvme::{
    Completion, IoCommand, Status,
    io::{DatasetManagement, DatasetRange},
};
use reactor::{Data, DataBuffer};
use transports::QueuePair as TransportQueuePair;

/// Executes Dataset Management.
pub async fn execute<Q: TransportQueuePair>(
    pair: &QueuePair<Q>,
    command: &IoCommand<'_>,
    namespace: &LocalNamespace,
    data: Option<DataBuffer>,
    token: &mut Q::Token,
) -> Result<(Completion, Data), Failure> {
    let wanted = DatasetManagement::parse(command.raw);
    let described = pair.transport.described(token, command.raw)?;
    let len = usize::try_from(described.len).unwrap_or(usize::MAX);
    if len < wanted.data_len() {
        return Err(Status::DATA_SGL_LENGTH_INVALID.dnr().into());
    }
    queue_pair::check_transfer(described, len as u64, false, data.is_some())?;
    check_size(pair, len as u64)?;
    let data = data_in(pair, data, token, len).await?;
    let (ranges, _) = data.filled()[..wanted.data_len()].as_chunks();
    for range in ranges.iter().map(DatasetRange::parse) {
        namespace.check_range(false, |blocks| range.is_within(blocks))?;
    }
    for range in ranges.iter().map(DatasetRange::parse).filter(|r| wanted.deallocate && r.blocks > 0) {
        let mark = namespace.enter(range.lba.0, range.blocks.into()).await?;
        let completion = namespace.queue.deallocate(range.lba, range.blocks.into()).await;
        namespace.locks.leave(mark);
        if !completion.status.is_success() {
            return Ok((completion, Data::None));
        }
    }
    Ok((Completion::OK, Data::None))
}
