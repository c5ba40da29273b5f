//! Files of a run: which media types are taken, and media that clients send inside of text fields.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use crate::domain::NewFile;
use crate::routes::error::ApiError;
use crate::routes::fields::Fields;
use crate::routes::form::Upload;

/// Media types outside of `text/*`, with the file extensions that stand for them.
const TYPES: &[(&str, &[&str])] = &[
    ("image/png", &["png"]),
    ("image/jpeg", &["jpg", "jpeg"]),
    ("image/jpg", &[]),
    ("image/gif", &["gif"]),
    ("image/webp", &["webp"]),
    ("image/bmp", &["bmp"]),
    ("image/tiff", &["tif", "tiff"]),
    ("image/avif", &["avif"]),
    ("image/heic", &["heic"]),
    ("image/heif", &["heif"]),
    ("audio/wav", &["wav"]),
    ("audio/wave", &[]),
    ("audio/x-wav", &[]),
    ("audio/mp3", &[]),
    ("audio/mpeg", &["mp3"]),
    ("audio/ogg", &["ogg"]),
    ("audio/mp4", &["m4a"]),
    ("audio/m4a", &[]),
    ("audio/aac", &["aac"]),
    ("audio/flac", &["flac"]),
    ("audio/webm", &[]),
    ("video/mp4", &["mp4"]),
    ("video/webm", &["webm"]),
    ("video/mpeg", &["mpeg", "mpg"]),
    ("video/quicktime", &["mov"]),
    ("video/x-flv", &["flv"]),
    ("video/wmv", &["wmv"]),
    ("video/3gpp", &["3gp"]),
    ("application/pdf", &["pdf"]),
    ("application/json", &["json"]),
    ("application/yaml", &["yaml", "yml"]),
    ("application/xml", &[]),
    ("application/rtf", &["rtf"]),
    ("application/javascript", &[]),
    ("application/x-javascript", &[]),
    ("application/x-python", &[]),
    ("application/zip", &["zip"]),
    ("application/x-zip-compressed", &[]),
    ("application/msword", &["doc"]),
    ("application/vnd.ms-excel", &["xls"]),
    ("application/vnd.ms-powerpoint", &["ppt"]),
    ("application/vnd.ms-outlook", &["msg"]),
    ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", &["docx"]),
    ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", &["xlsx"]),
    ("application/vnd.openxmlformats-officedocument.presentationml.presentation", &["pptx"]),
];

/// Extensions of text files whose media type browsers don't know.
const TEXTS: &[(&str, &[&str])] = &[
    (
        "text/plain",
        &["txt", "log", "ini", "toml", "env", "sh", "sql", "rs", "go", "java", "c", "h", "cpp", "ts", "tsx"],
    ),
    ("text/markdown", &["md", "markdown"]),
    ("text/csv", &["csv"]),
    ("text/tab-separated-values", &["tsv"]),
    ("text/html", &["html", "htm"]),
    ("text/xml", &["xml"]),
    ("text/css", &["css"]),
    ("text/javascript", &["js", "mjs"]),
    ("text/x-python", &["py"]),
];

/// The media type under which a file is kept; none for a kind that is not taken.
#[must_use]
pub fn media_type(declared: Option<&str>, name: &str) -> Option<String> {
    let declared = declared.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if matches!(declared.as_str(), "" | "application/octet-stream") {
        return by_extension(name).map(str::to_owned);
    }
    let known = declared.starts_with("text/") || TYPES.iter().any(|(kind, _)| *kind == declared);
    known.then_some(declared)
}

fn by_extension(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    let extension = extension.to_ascii_lowercase();
    let mut all = TYPES.iter().chain(TEXTS);
    all.find(|(_, extensions)| extensions.contains(&extension.as_str())).map(|(kind, _)| *kind)
}

/// Uploads as files of a run.
///
/// # Errors
/// 400 for a kind of file that is not taken.
pub fn uploads(uploads: Vec<Upload>) -> Result<Vec<NewFile>, ApiError> {
    let one = |Upload { name, media_type: declared, bytes }| {
        let media_type = media_type(declared.as_deref(), &name).ok_or_else(unsupported)?;
        Ok(NewFile { name, media_type, bytes })
    };
    uploads.into_iter().map(one).collect()
}

/// A media object as AgentOS's client sends it.
#[derive(Deserialize)]
struct MediaObject {
    id: Option<String>,
    content: Option<String>,
    filename: Option<String>,
    name: Option<String>,
    mime_type: Option<String>,
    format: Option<String>,
}

/// Reads `images`, `audio`, `videos` and `input_files`: JSON arrays of media objects with base64 content.
///
/// # Errors
/// 400 for what is only named by URL or path, or is of a kind that is not taken. What is no such array is noted in
/// `fields`.
pub fn objects(fields: &mut Fields) -> Result<Vec<NewFile>, ApiError> {
    let mut files = Vec::new();
    for (field, prefix) in [("images", "image"), ("audio", "audio"), ("videos", "video"), ("input_files", "file")] {
        let Some(text) = fields.text(field).map(str::to_owned) else { continue };
        let Ok(objects) = serde_json::from_str::<Vec<MediaObject>>(&text) else {
            fields.fail("list_type", field, "Input should be a valid JSON array of media objects", Value::Null, None);
            continue;
        };
        for (position, object) in objects.into_iter().enumerate() {
            match file(object, prefix, position)? {
                Some(file) => files.push(file),
                None => fields.fail("value_error", field, "Value error, content is not base64", Value::Null, None),
            }
        }
    }
    Ok(files)
}

fn file(object: MediaObject, prefix: &str, position: usize) -> Result<Option<NewFile>, ApiError> {
    let MediaObject { id, content, filename, name, mime_type, format } = object;
    let Some(content) = content else {
        return Err(ApiError::bad_request("Media by URL or path is not taken; send its content"));
    };
    let Ok(bytes) = STANDARD.decode(content) else { return Ok(None) };
    let stem = id.unwrap_or_else(|| format!("{prefix}-{}", position + 1));
    let extension = format.map(|format| format!(".{format}")).unwrap_or_default();
    let name = filename.or(name).unwrap_or_else(|| format!("{stem}{extension}"));
    let media_type = media_type(mime_type.as_deref(), &name).ok_or_else(unsupported)?;
    Ok(Some(NewFile { name, media_type, bytes: Bytes::from(bytes) }))
}

fn unsupported() -> ApiError {
    ApiError::bad_request("Unsupported file type")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_declared_type_counts_and_the_extension_helps() {
        for (declared, name, expected) in [
            (Some("image/png"), "a", Some("image/png")),
            (Some("Text/CSV; charset=utf-8"), "a", Some("text/csv")),
            (Some("application/octet-stream"), "notes.md", Some("text/markdown")),
            (None, "DATA.CSV", Some("text/csv")),
            (None, "photo.jpeg", Some("image/jpeg")),
            (None, "program.exe", None),
            (None, "noextension", None),
            (Some("application/x-msdownload"), "a.txt", None),
            (Some("audio/midi"), "a.mid", None),
        ] {
            assert_eq!(media_type(declared, name).as_deref(), expected, "{declared:?} {name}");
        }
    }

    fn read(field: &str, json: &str) -> (Result<Vec<NewFile>, ApiError>, Result<(), ApiError>) {
        let mut fields = Fields::of_body(vec![(field.to_owned(), json.to_owned())]);
        (objects(&mut fields), fields.finish())
    }

    #[test]
    fn media_objects_become_files() {
        let json = r#"[{"id":"x","content":"aGk=","mime_type":"text/plain","filename":"a.txt"},
                       {"content":"aGk=","format":"csv"}]"#;
        let (files, valid) = read("input_files", json);
        let files: Vec<_> = files.unwrap().into_iter().map(|f| (f.name, f.media_type, f.bytes)).collect();
        assert_eq!(
            files,
            [
                ("a.txt".into(), "text/plain".into(), Bytes::from("hi")),
                ("file-2.csv".into(), "text/csv".into(), Bytes::from("hi")),
            ]
        );
        assert!(valid.is_ok());
    }

    #[test]
    fn what_is_no_array_of_media_is_refused() {
        assert_eq!(read("images", "{}").1.unwrap_err().status(), 422);
        assert_eq!(read("images", r#"[{"content":"%%%"}]"#).1.unwrap_err().status(), 422);
        assert_eq!(read("images", r#"[{"url":"http://169.254.169.254/"}]"#).0.unwrap_err().status(), 400);
    }
}
