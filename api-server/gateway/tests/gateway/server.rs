//! A server that does on the wire exactly what a test says, where an HTTP mock is too polite.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Begins an answer of which the end is not known yet.
pub const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

/// One listening socket.
pub struct Server {
    listener: TcpListener,
    pub address: SocketAddr,
}

impl Server {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self { listener, address }
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The next connection, once its request has been read.
    pub async fn accept(&self) -> TcpStream {
        let (mut socket, _) = self.listener.accept().await.unwrap();
        read_request(&mut socket).await;
        socket
    }
}

async fn read_request(socket: &mut TcpStream) {
    let mut seen = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        let read = socket.read(&mut buffer).await.unwrap();
        assert!(read > 0, "the client left before its request was complete");
        seen.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&seen);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            if body.len() >= length.unwrap_or(0) {
                return;
            }
        }
    }
}

/// Writes and makes sure that the bytes are on their way.
pub async fn write(socket: &mut TcpStream, text: &str) {
    socket.write_all(text.as_bytes()).await.unwrap();
    socket.flush().await.unwrap();
}

/// Waits until the client has closed its side.
pub async fn closed_by_client(mut socket: TcpStream) {
    let mut buffer = [0; 64];
    while !matches!(socket.read(&mut buffer).await, Ok(0) | Err(_)) {}
}

/// A channel for the pieces of an answer, to act upon as they arrive.
pub fn pieces<T>() -> (mpsc::UnboundedSender<T>, mpsc::UnboundedReceiver<T>) {
    mpsc::unbounded_channel()
}
