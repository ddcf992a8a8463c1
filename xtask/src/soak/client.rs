//! HTTP requests over plain sockets, so that they can be interrupted, delayed and malformed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Time limit of a whole response.
const PATIENCE: Duration = Duration::from_secs(120);

/// Address of a server on this machine.
#[derive(Clone, Copy)]
pub struct Client {
    /// Port.
    pub port: u16,
}

/// A response.
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// The body, with chunks joined.
    pub body: String,
}

impl Client {
    /// Opens a connection.
    pub fn open(self) -> Option<TcpStream> {
        let stream =
            TcpStream::connect_timeout(&([127, 0, 0, 1], self.port).into(), Duration::from_secs(5)).ok()?;
        stream.set_read_timeout(Some(Duration::from_millis(200))).ok()?;
        stream.set_write_timeout(Some(PATIENCE)).ok()?;
        Some(stream)
    }

    /// The bytes of a POST request with a JSON body, after which the server closes the connection.
    pub fn post(self, path: &str, body: &str) -> Vec<u8> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            self.port,
            body.len()
        );
        [head.as_bytes(), body.as_bytes()].concat()
    }

    /// Sends a request and waits for the whole response.
    pub fn ask(self, request: &[u8]) -> Option<Answer> {
        let mut stream = self.open()?;
        stream.write_all(request).ok()?;
        let (mut bytes, since) = (Vec::new(), Instant::now());
        read_until(&mut stream, &mut bytes, || since.elapsed() > PATIENCE);
        answer(&String::from_utf8_lossy(&bytes))
    }

    /// The response to `GET` of a path.
    pub fn get(self, path: &str) -> Option<Answer> {
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n\r\n", self.port);
        self.ask(head.as_bytes())
    }

    /// Sends a request, reads for `after`, and disconnects.
    pub fn leave(self, request: &[u8], after: Duration) {
        let Some(mut stream) = self.open() else { return };
        if stream.write_all(request).is_ok() {
            let since = Instant::now();
            read_until(&mut stream, &mut Vec::new(), || since.elapsed() > after);
        }
        _ = stream.shutdown(Shutdown::Both);
    }

    /// Sends bytes, then stays silent until `until` returns true, and disconnects.
    pub fn stall(self, bytes: &[u8], until: impl Fn() -> bool) {
        let Some(mut stream) = self.open() else { return };
        _ = stream.write_all(bytes);
        while !until() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Reads to the end, or until `enough` returns true.
fn read_until(stream: &mut TcpStream, bytes: &mut Vec<u8>, enough: impl Fn() -> bool) {
    let mut part = [0; 4096];
    // A short timeout, so that `enough` is checked often.
    _ = stream.set_read_timeout(Some(Duration::from_millis(5)));
    while !enough() {
        match stream.read(&mut part) {
            Ok(0) => return,
            Ok(read) => bytes.extend(&part[..read]),
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
    }
}

/// Parses a response; `None` if it is incomplete.
fn answer(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Some(Answer { status, body: if chunked { joined(body)? } else { body.into() } })
}

/// The chunks of a body, joined (RFC 9112, section 7.1).
fn joined(mut body: &str) -> Option<String> {
    let mut all = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n")?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        if size == 0 {
            return Some(all);
        }
        all += rest.get(..size)?;
        body = rest.get(size..)?.strip_prefix("\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_apart() {
        let whole = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        let found = answer(whole).unwrap();
        assert_eq!((found.status, found.body.as_str()), (200, "abcde"));
        assert!(answer(&whole[..whole.len() - 9]).is_none());
        assert_eq!(answer("HTTP/1.1 429 No\r\ncontent-length: 2\r\n\r\nno").unwrap().status, 429);
    }
}
