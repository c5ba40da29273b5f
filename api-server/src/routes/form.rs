//! Form bodies: `multipart/form-data` and `application/x-www-form-urlencoded`, with AgentOS's limits.

use axum::extract::multipart::{Field, Multipart, MultipartError};
use axum::extract::{Form, FromRequest, Request};
use bytes::{BufMut as _, Bytes, BytesMut};
use http::header;

use super::error::ApiError;
use super::extract::body_rejected;
use super::fields::Fields;

/// Largest text field, in bytes.
pub const MAX_FIELD_BYTES: usize = 1 << 20;
/// Most parts of one form.
const MAX_PARTS: usize = 1000;

/// A file of a form, as it was sent.
#[derive(Debug)]
pub struct Upload {
    /// File name; empty when the client gave none.
    pub name: String,
    /// Media type of the part.
    pub media_type: Option<String>,
    /// Content.
    pub bytes: Bytes,
}

/// A form with its files.
#[derive(Debug)]
pub struct ApiForm {
    /// Text fields.
    pub fields: Fields,
    /// Files, in order.
    pub files: Vec<Upload>,
}

impl<S: Send + Sync> FromRequest<S> for ApiForm {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let media_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type.unwrap_or_default().to_ascii_lowercase();
        if media_type.starts_with("multipart/form-data") {
            return read_multipart(request, state).await;
        }
        let mut pairs = Vec::new();
        if media_type.starts_with("application/x-www-form-urlencoded") {
            let form = Form::<Vec<(String, String)>>::from_request(request, state).await;
            pairs = form.map_err(|rejection| body_rejected(rejection.status()))?.0;
        }
        // Media arrays come in text fields of this kind of form; the limit on the whole body holds for them.
        let oversized = |(name, value): &(String, String)| value.len() > MAX_FIELD_BYTES && !is_media(name);
        if pairs.iter().any(oversized) {
            return Err(field_too_large());
        }
        Ok(Self { fields: Fields::of_body(pairs), files: Vec::new() })
    }
}

/// Whether a text field holds a JSON array of media objects.
#[must_use]
pub fn is_media(name: &str) -> bool {
    matches!(name, "images" | "audio" | "videos" | "input_files")
}

async fn read_multipart<S: Send + Sync>(request: Request, state: &S) -> Result<ApiForm, ApiError> {
    let mut multipart = Multipart::from_request(request, state)
        .await
        .map_err(|_| ApiError::bad_request("Missing boundary in multipart."))?;
    let (mut pairs, mut files) = (Vec::new(), Vec::new());
    while let Some(field) = multipart.next_field().await.map_err(|error| unreadable(&error))? {
        if pairs.len() + files.len() == MAX_PARTS {
            return Err(ApiError::bad_request(format!("Too many fields. Maximum number of fields is {MAX_PARTS}.")));
        }
        let name = field.name().unwrap_or_default().to_owned();
        if let Some(file_name) = field.file_name().map(str::to_owned) {
            let media_type = field.content_type().map(str::to_owned);
            let bytes = field.bytes().await.map_err(|error| unreadable(&error))?;
            // A browser sends a nameless, empty part for a file input without a choice.
            if !(file_name.is_empty() && bytes.is_empty()) {
                files.push(Upload { name: file_name, media_type, bytes });
            }
        } else {
            let text = read_text(field).await?;
            if name == "files" && !text.is_empty() {
                // Its name is in another encoding than UTF-8, or in `filename*` alone: a file must not be lost in silence.
                return Err(ApiError::bad_request("A part called files needs a filename in UTF-8"));
            }
            pairs.push((name, text));
        }
    }
    Ok(ApiForm { fields: Fields::of_body(pairs), files })
}

async fn read_text(mut field: Field<'_>) -> Result<String, ApiError> {
    let mut text = BytesMut::new();
    while let Some(chunk) = field.chunk().await.map_err(|error| unreadable(&error))? {
        if text.len() + chunk.len() > MAX_FIELD_BYTES {
            return Err(field_too_large());
        }
        text.put(chunk);
    }
    String::from_utf8(text.to_vec()).map_err(|_| ApiError::bad_request("A form field is not UTF-8 text"))
}

fn unreadable(error: &MultipartError) -> ApiError {
    body_rejected(error.status())
}

fn field_too_large() -> ApiError {
    ApiError::bad_request("Field exceeded maximum size of 1024KB.")
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    async fn read(media_type: &str, body: impl Into<Body>) -> Result<ApiForm, ApiError> {
        let request = Request::post("/").header(header::CONTENT_TYPE, media_type).body(body.into()).unwrap();
        ApiForm::from_request(request, &()).await
    }

    const MULTIPART: &str = "multipart/form-data; boundary=X";

    #[tokio::test]
    async fn both_kinds_of_form_give_the_same_fields() {
        let form = read("application/x-www-form-urlencoded", "message=a+b%21&stream=false").await.unwrap();
        assert_eq!((form.fields.text("message"), form.fields.text("stream")), (Some("a b!"), Some("false")));
        let body = "--X\r\ncontent-disposition: form-data; name=\"message\"\r\n\r\na b!\r\n\
                    --X\r\ncontent-disposition: form-data; name=\"files\"; filename=\"a.csv\"\r\n\
                    content-type: text/csv\r\n\r\n1,2\r\n\
                    --X\r\ncontent-disposition: form-data; name=\"files\"; filename=\"\"\r\n\r\n\r\n--X--\r\n";
        let form = read(MULTIPART, body).await.unwrap();
        assert_eq!(form.fields.text("message"), Some("a b!"));
        assert_eq!(form.files.len(), 1);
        let file = &form.files[0];
        assert_eq!((file.name.as_str(), file.media_type.as_deref()), ("a.csv", Some("text/csv")));
        assert_eq!(&file.bytes[..], b"1,2");
    }

    #[tokio::test]
    async fn a_field_over_one_mebibyte_is_refused() {
        let long = "x".repeat(MAX_FIELD_BYTES + 1);
        let body = format!("--X\r\ncontent-disposition: form-data; name=\"message\"\r\n\r\n{long}\r\n--X--\r\n");
        let error = read(MULTIPART, body).await.unwrap_err();
        assert_eq!((error.status().as_u16(), error.message()), (400, "Field exceeded maximum size of 1024KB."));
        let error = read("application/x-www-form-urlencoded", format!("message={long}")).await.unwrap_err();
        assert_eq!(error.message(), "Field exceeded maximum size of 1024KB.");
    }

    #[tokio::test]
    async fn a_file_without_a_name_is_not_lost_in_silence() {
        let part =
            |disposition: &str| format!("--X\r\ncontent-disposition: form-data; {disposition}\r\n\r\n1,2\r\n--X--\r\n");
        let error = read(MULTIPART, part("name=\"files\"; filename*=UTF-8''a%20b.txt")).await.unwrap_err();
        assert_eq!(error.status().as_u16(), 400);
        assert!(read(MULTIPART, part("name=\"files\"; filename=\"a b.txt\"")).await.is_ok());
    }

    #[tokio::test]
    async fn broken_bodies_are_the_clients_fault() {
        assert_eq!(read("multipart/form-data", "x").await.unwrap_err().status(), 400);
        assert_eq!(read(MULTIPART, "--X\r\nno end").await.unwrap_err().status(), 400);
        assert!(read("application/json", "{}").await.unwrap().fields.pairs().is_empty());
    }
}
