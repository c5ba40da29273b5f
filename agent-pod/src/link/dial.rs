//! Opening a connection: TCP or Unix socket, bearer token, WebSocket handshake.

use std::io;
use std::time::Duration;

use cadre_protocol::worker::{LINK_PATH, MAX_FRAME_BYTES, READ_BYTES};
use http::header::{AUTHORIZATION, HeaderValue};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, error::Error as WsError};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::config::{Endpoint, TokenSource};

/// Time for the connection and its handshake.
const DIAL_TIME: Duration = Duration::from_secs(10);
/// Time for the answer to the first attempt to connect; each later one gets twice the time.
const FIRST_ANSWER: Duration = Duration::from_millis(50);

/// A byte stream to the server.
pub trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// An open connection.
pub type Socket = WebSocketStream<Box<dyn Bytes>>;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The token can't be read, or is no header value.
    #[error("the token can't be read")]
    Token(#[source] io::Error),
    /// The server refuses the token.
    #[error("the API server refuses the token with status {0}")]
    Unauthorized(u16),
    /// The server can't be reached, or does not speak the protocol.
    #[error("the API server can't be reached")]
    Unreachable(#[source] Box<WsError>),
    /// No answer in time.
    #[error("the API server did not answer in time")]
    Timeout,
}

impl From<WsError> for DialError {
    fn from(error: WsError) -> Self {
        match &error {
            WsError::Http(response) if matches!(response.status().as_u16(), 401 | 403) => {
                Self::Unauthorized(response.status().as_u16())
            }
            _ => Self::Unreachable(Box::new(error)),
        }
    }
}

/// Opens a connection.
///
/// # Errors
/// When there is none within 10 s; the caller tries again.
pub async fn dial(endpoint: &Endpoint, token: &TokenSource) -> Result<Socket, DialError> {
    let bearer = bearer(token).await?;
    tokio::time::timeout(DIAL_TIME, open(endpoint, bearer)).await.map_err(|_| DialError::Timeout)?
}

async fn open(endpoint: &Endpoint, bearer: HeaderValue) -> Result<Socket, DialError> {
    let (stream, authority): (Box<dyn Bytes>, &str) = match endpoint {
        Endpoint::Tcp { authority } => {
            let stream = connect(authority).await.map_err(WsError::Io)?;
            stream.set_nodelay(true).map_err(WsError::Io)?;
            (Box::new(stream), authority)
        }
        Endpoint::Unix(path) => (Box::new(UnixStream::connect(path).await.map_err(WsError::Io)?), "localhost"),
    };
    let mut request = format!("ws://{authority}{LINK_PATH}").into_client_request()?;
    request.headers_mut().insert(AUTHORIZATION, bearer);
    let limits =
        WebSocketConfig::default().max_message_size(Some(MAX_FRAME_BYTES)).max_frame_size(Some(MAX_FRAME_BYTES));
    let limits = limits.read_buffer_size(READ_BYTES);
    let (socket, _) = client_async_with_config(request, stream, Some(limits)).await?;
    Ok(socket)
}

/// Connects with a new packet soon after one that nobody answers: the first ones of a new pod may come before its network
/// policy lets them through, and the kernel would wait a whole second before it sends another.
async fn connect(authority: &str) -> io::Result<TcpStream> {
    let mut patience = FIRST_ANSWER;
    loop {
        match tokio::time::timeout(patience, TcpStream::connect(authority)).await {
            Ok(outcome) => return outcome,
            // `dial` ends this.
            Err(_) => patience *= 2,
        }
    }
}

async fn bearer(token: &TokenSource) -> Result<HeaderValue, DialError> {
    let text = match token {
        TokenSource::File(path) => tokio::fs::read_to_string(path).await.map_err(DialError::Token)?,
        TokenSource::Text(text) => text.clone(),
    };
    let mut value = HeaderValue::try_from(format!("Bearer {}", text.trim()))
        .map_err(|error| DialError::Token(io::Error::new(io::ErrorKind::InvalidData, error)))?;
    value.set_sensitive(true);
    Ok(value)
}

/// A text frame.
#[must_use]
pub fn text(content: String) -> tungstenite::Message {
    tungstenite::Message::Text(content.into())
}
