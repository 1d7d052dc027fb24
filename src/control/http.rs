//! As much HTTP/1.1 as a scrape needs: one GET or HEAD for each connection, then close.
//!
//! No framework: the whole protocol used here is smaller than the interface of one, and a target should not
//! carry a web server. Reading a request is a function over bytes ([`parse`]); `answer` puts a socket under
//! it.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time;

/// The media type of pages for people.
pub(super) const PLAIN: &str = "text/plain; charset=utf-8";

const MAX_HEADER_BYTES: usize = 8 << 10;
/// How much and how long a host may go on sending after the answer.
const LINGER_BYTES: usize = 64 << 10;
const LINGER_TIME: Duration = Duration::from_secs(1);

/// What a path leads to.
#[derive(Debug)]
pub(super) struct Resource {
    pub(super) status: Status,
    pub(super) content_type: &'static str,
    pub(super) body: String,
}

/// The answers in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    HeaderTooLarge,
    ServiceUnavailable,
}

impl Resource {
    /// A page that only says what is wrong.
    pub(super) fn error(status: Status) -> Self {
        Self { status, content_type: PLAIN, body: format!("{}\n", status.line()) }
    }
}

impl Status {
    const fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::HeaderTooLarge => "431 Request Header Fields Too Large",
            Self::ServiceUnavailable => "503 Service Unavailable",
        }
    }
}

/// A request that can be answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) path: String,
    pub(super) with_body: bool,
}

/// Reads one request: `None` when the peer closes without one, an error status when it is none that can be
/// answered.
pub(super) async fn receive(stream: &mut TcpStream) -> io::Result<Option<Result<Request, Status>>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = header_end(&bytes) {
            return Ok(Some(parse(&bytes[..end])));
        }
        if bytes.len() >= MAX_HEADER_BYTES {
            return Ok(Some(Err(Status::HeaderTooLarge)));
        }
        let room = (MAX_HEADER_BYTES - bytes.len()) as u64;
        if (&mut *stream).take(room).read_buf(&mut bytes).await? == 0 {
            // A health check that only opens and closes the port gets no answer.
            return Ok((!bytes.is_empty()).then_some(Err(Status::BadRequest)));
        }
    }
}

/// Sends the answer and closes the connection.
pub(super) async fn send(mut stream: TcpStream, resource: &Resource, with_body: bool) -> io::Result<()> {
    stream.write_all(&encode(resource, with_body)).await?;
    stream.shutdown().await?;
    linger(stream).await;
    Ok(())
}

/// Reads on until the peer has closed. Closing with unread bytes would reset the connection, and the reset
/// can overtake the answer.
async fn linger(mut stream: TcpStream) {
    let mut scratch = [0; 1024];
    let mut left = LINGER_BYTES;
    let drain = async {
        while left > 0 {
            match stream.read(&mut scratch).await {
                Ok(0) | Err(_) => break,
                Ok(read) => left = left.saturating_sub(read),
            }
        }
    };
    // Too late is as good as done: the answer has long been sent.
    let _ = time::timeout(LINGER_TIME, drain).await;
}

/// How long the header is, with the empty line, once all of it is there.
fn header_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

/// The request line of a whole header.
fn parse(header: &[u8]) -> Result<Request, Status> {
    let text = str::from_utf8(header).map_err(|_| Status::BadRequest)?;
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Status::BadRequest);
    };
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let field = |line: &str| {
        line.split_once(':').is_some_and(|(name, _)| !name.is_empty() && name.chars().all(token))
    };
    let sound = matches!(version, "HTTP/1.1" | "HTTP/1.0")
        && target.starts_with('/')
        && !method.is_empty()
        && method.chars().all(token)
        && lines.take_while(|line| !line.is_empty()).all(field);
    if !sound {
        return Err(Status::BadRequest);
    }
    let path = target.split('?').next().unwrap_or(target).to_owned();
    match method {
        "GET" => Ok(Request { path, with_body: true }),
        "HEAD" => Ok(Request { path, with_body: false }),
        _ => Err(Status::MethodNotAllowed),
    }
}

fn encode(resource: &Resource, with_body: bool) -> Vec<u8> {
    let allow = if resource.status == Status::MethodNotAllowed { "Allow: GET, HEAD\r\n" } else { "" };
    let mut text = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        resource.status.line(),
        resource.content_type,
        resource.body.len(),
    );
    if with_body {
        text.push_str(&resource.body);
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(header: &str) -> Result<Request, Status> {
        parse(header.as_bytes())
    }

    #[test]
    fn requests() {
        let get = |path: &str| Ok(Request { path: path.to_owned(), with_body: true });
        assert_eq!(path("GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n"), get("/metrics"));
        assert_eq!(path("GET / HTTP/1.0\r\n\r\n"), get("/"));
        assert_eq!(path("GET /metrics?name[]=x HTTP/1.1\r\nHost: a\r\n\r\n"), get("/metrics"));
        assert_eq!(path("HEAD /x HTTP/1.1\r\n\r\n"), Ok(Request { path: "/x".to_owned(), with_body: false }));
    }

    #[test]
    fn what_is_no_request() {
        for (header, status) in [
            ("POST /metrics HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("get /metrics HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("\r\n\r\n", Status::BadRequest),
            ("GET /metrics\r\n\r\n", Status::BadRequest),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Status::BadRequest),
            ("GET metrics HTTP/1.1\r\n\r\n", Status::BadRequest),
            ("GET /metrics HTTP/2.0\r\n\r\n", Status::BadRequest),
            ("G\u{1}T /metrics HTTP/1.1\r\n\r\n", Status::BadRequest),
            ("GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", Status::BadRequest),
            ("GET /metrics HTTP/1.1\r\n: empty\r\n\r\n", Status::BadRequest),
        ] {
            assert_eq!(path(header), Err(status), "{header:?}");
        }
        assert_eq!(parse(b"GET /\xff HTTP/1.1\r\n\r\n"), Err(Status::BadRequest));
    }

    #[test]
    fn the_header_ends_at_the_empty_line() {
        assert_eq!(header_end(b"GET / HTTP/1.1\r\n\r"), None);
        assert_eq!(header_end(b"a\r\n\r\nrest"), Some(5));
    }
}
