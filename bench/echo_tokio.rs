//! The second yardstick: the bare work on tokio-uring, one task for each connection. It reads what is there, then
//! writes all responses with one gather write.

use crate::bare::{self, Request, Requests};
use crate::options::EchoOptions;
use crate::process;
use std::collections::HashMap;
use std::error::Error;
use std::io;
use tokio_uring::net::{TcpListener, TcpStream};

/// Serves until it is killed.
pub fn serve(options: &EchoOptions) -> Result<bool, Box<dyn Error>> {
    process::pin(options.cpu)?;
    let address = options.address;
    tokio_uring::start(async move {
        let listener = TcpListener::bind(address)?;
        println!("listening on {}", listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio_uring::spawn(async move {
                // The generator leaves; there is nobody to tell.
                let _ = echo(stream).await;
            });
        }
    })
}

/// Headers that live for ever, because the ring wants memory that does. There are few different ones.
#[derive(Default)]
struct Headers {
    known: HashMap<(u16, usize), &'static [u8]>,
}

impl Headers {
    fn of(&mut self, request: Request) -> &'static [u8] {
        self.known
            .entry((request.cid, request.wants))
            .or_insert_with(|| &*Box::leak(Box::new(bare::response(request))))
    }
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    let mut requests = Requests::default();
    let mut headers = Headers::default();
    let mut buffer = vec![0_u8; 64 << 10];
    loop {
        let (result, returned) = stream.read(buffer).await;
        buffer = returned;
        let length = result?;
        if length == 0 {
            return Ok(());
        }
        let mut ranges: Vec<&'static [u8]> = Vec::new();
        requests.take(&buffer[..length], |request| {
            ranges.push(headers.of(request));
            if request.wants > 0 {
                ranges.push(&bare::ZEROES[..request.wants]);
            }
        });
        while !ranges.is_empty() {
            let rest = ranges.split_off(ranges.len().min(1024));
            let (result, returned) = stream.writev(ranges).await;
            ranges = without(returned, result?);
            ranges.extend(rest);
        }
    }
}

/// The ranges behind the first `length` bytes.
fn without(mut ranges: Vec<&'static [u8]>, mut length: usize) -> Vec<&'static [u8]> {
    let mut whole = 0;
    for range in &mut ranges {
        if length < range.len() {
            *range = &range[length..];
            break;
        }
        length -= range.len();
        whole += 1;
    }
    ranges.drain(..whole);
    ranges
}
