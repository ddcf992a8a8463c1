//! A small HTTP server: files by ranges, with failures on request.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// Reaction of the server to a request.
pub enum Answer {
    /// Sends the range.
    Whole,
    /// Sends half of the range, then closes the connection.
    Half,
    /// Sends only a status.
    Status(u16),
    /// Closes the connection.
    Nothing,
}

/// Serves files by name until the process ends; `answer` is called with the number of the request, the file's name
/// and the offset. Returns the address of the folder.
pub fn serve(
    files: &[(&str, Vec<u8>)],
    answer: impl Fn(usize, &str, usize) -> Answer + Send + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let files: Vec<(String, Vec<u8>)> =
        files.iter().map(|(name, bytes)| (name.to_string(), bytes.clone())).collect();
    std::thread::spawn(move || {
        for (turn, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let Some((name, range)) = request(&mut stream) else { continue };
            let Some((_, bytes)) = files.iter().find(|(file, _)| *file == name) else { continue };
            let Some((from, to)) = range.split_once('-') else {
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    bytes.len()
                );
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(bytes));
                continue;
            };
            let from: usize = from.parse().unwrap();
            let to = to.parse::<usize>().map_or(bytes.len(), |to| (to + 1).min(bytes.len()));
            let (head, part) = match answer(turn, &name, from) {
                Answer::Nothing => continue,
                Answer::Status(status) => (status_line(status), &[][..]),
                _ if from >= bytes.len() => (status_line(416), &[][..]),
                Answer::Whole => (range_head(from, to, bytes.len()), &bytes[from..to]),
                Answer::Half => (range_head(from, to, bytes.len()), &bytes[from..from + (to - from) / 2]),
            };
            // The client may be gone already.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(part));
        }
    });
    address
}

/// File name without the query, and the range requested by a client; an empty range stands for the whole file.
fn request(stream: &mut TcpStream) -> Option<(String, String)> {
    let (mut request, mut buffer) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => request.extend_from_slice(&buffer[..count]),
            _ => break,
        }
    }
    let request = String::from_utf8_lossy(&request).to_lowercase();
    let address = request.split_whitespace().nth(1)?.split('?').next()?;
    let range =
        request.split("range: bytes=").nth(1).and_then(|rest| rest.lines().next()).unwrap_or_default();
    Some((address.trim_matches('/').to_string(), range.trim().to_string()))
}

fn status_line(status: u16) -> String {
    format!("HTTP/1.1 {status} Said\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

fn range_head(from: usize, to: usize, size: usize) -> String {
    format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{}/{size}\r\n\
         Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nETag: \"x\"\r\nConnection: close\r\n\r\n",
        to - from,
        to - 1
    )
}
