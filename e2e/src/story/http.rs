//! A small HTTP client for loopback: plain HTTP/1.1, one connection a request, bodies as they come.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Longest silence on a connection. Event streams say something every 15 s.
const SILENCE: Duration = Duration::from_secs(30);

/// Longest time for a connection to open: nobody is further away than this machine.
const OPEN: Duration = Duration::from_secs(5);

/// A request.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// For example `GET`.
    pub method: &'a str,
    /// Path and query.
    pub path: &'a str,
    /// Header lines, without those that the client makes.
    pub headers: &'a [(&'a str, &'a str)],
    /// Body; its type is a header's to name.
    pub body: &'a [u8],
}

/// The head of an answer, and its body as it comes.
pub struct Response {
    /// Status.
    pub status: u16,
    body: Body,
}

enum Body {
    /// Until the connection ends.
    Open(BufReader<TcpStream>),
    Sized(std::io::Take<BufReader<TcpStream>>),
    Chunked(Chunks),
}

/// Sends a request and reads the answer's head.
///
/// # Errors
/// When nobody answers, or not in HTTP.
pub fn send(server: SocketAddr, request: &Request<'_>) -> Result<Response> {
    let Request { method, path, headers, body } = request;
    let mut stream = TcpStream::connect_timeout(&server, OPEN).with_context(|| format!("{server} is closed"))?;
    stream.set_read_timeout(Some(SILENCE))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n");
    for (name, value) in *headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() || *method == "POST" {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    stream.write_all(&[head.as_bytes(), body].concat())?;
    read_head(BufReader::new(stream))
}

fn read_head(mut reader: BufReader<TcpStream>) -> Result<Response> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.with_context(|| format!("no HTTP answer: {line:?}"))?;
    let (mut length, mut chunked) = (None, false);
    loop {
        line.clear();
        ensure!(reader.read_line(&mut line)? > 0, "the answer's head is cut off");
        let lower = line.trim().to_ascii_lowercase();
        match lower.split_once(':') {
            _ if lower.is_empty() => break,
            Some(("content-length", value)) => length = Some(value.trim().parse()?),
            Some(("transfer-encoding", value)) => chunked = value.trim() == "chunked",
            _ => {}
        }
    }
    let body = match length {
        _ if chunked => Body::Chunked(Chunks { reader, left: 0, ended: false }),
        Some(length) => Body::Sized(reader.take(length)),
        None => Body::Open(reader),
    };
    Ok(Response { status, body })
}

impl Read for Response {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match &mut self.body {
            Body::Open(reader) => reader.read(buffer),
            Body::Sized(reader) => reader.read(buffer),
            Body::Chunked(chunks) => chunks.read(buffer),
        }
    }
}

impl Response {
    /// All of the body, as text.
    ///
    /// # Errors
    /// When it breaks off.
    pub fn text(mut self) -> Result<String> {
        let mut text = String::new();
        self.read_to_string(&mut text)?;
        Ok(text)
    }

    /// All of the body, as JSON.
    ///
    /// # Errors
    /// When it is none, or the status is not one of success.
    pub fn json(self) -> Result<Value> {
        let status = self.status;
        let text = self.text()?;
        if !(200..300).contains(&status) {
            bail!("the server answers {status}: {text}");
        }
        serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
    }
}

/// A chunked body. One that ends before its last chunk is an error: a stream that breaks must not look like an end.
struct Chunks {
    reader: BufReader<TcpStream>,
    left: usize,
    ended: bool,
}

impl Chunks {
    fn next_size(&mut self) -> std::io::Result<usize> {
        let mut line = String::new();
        // The line break after the chunk before.
        while line.trim().is_empty() {
            line.clear();
            if self.reader.read_line(&mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        let size = line.trim().split(';').next().unwrap_or_default();
        usize::from_str_radix(size, 16).map_err(|_| std::io::ErrorKind::InvalidData.into())
    }
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.ended {
            return Ok(0);
        }
        if self.left == 0 {
            self.left = self.next_size()?;
            if self.left == 0 {
                self.ended = true;
                return Ok(0);
            }
        }
        let wanted = buffer.len().min(self.left);
        let count = self.reader.read(buffer.get_mut(..wanted).unwrap_or_default())?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn answer(text: &'static str) -> Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
        });
        let response = send(address, &Request { method: "GET", path: "/", headers: &[], body: &[] });
        server.join().unwrap();
        response?.text()
    }

    #[test]
    fn bodies_are_read_whole() {
        assert_eq!(answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi there").unwrap(), "hi");
        assert_eq!(answer("HTTP/1.1 200 OK\r\n\r\nhi there").unwrap(), "hi there");
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n6\r\n there\r\n0\r\n\r\n";
        assert_eq!(answer(chunked).unwrap(), "hi there");
    }

    #[test]
    fn a_broken_stream_is_no_end() {
        assert!(answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n6\r\n th").is_err());
        assert!(answer("").is_err());
    }
}
