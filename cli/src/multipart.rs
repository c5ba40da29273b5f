//! Forms with files, written as RFC 7578 wants them. Pure.

use bytes::Bytes;

/// A file of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormFile {
    /// File name.
    pub name: String,
    /// Media type; the server goes by the name's extension where it is none.
    pub media_type: Option<String>,
    /// Content.
    pub bytes: Bytes,
}

/// A form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Form {
    /// Fields, in order.
    pub fields: Vec<(&'static str, String)>,
    /// Files, all in the field `files`.
    pub files: Vec<FormFile>,
}

impl Form {
    /// Content type and body. `boundary` must not occur in any part: a random one does not.
    #[must_use]
    pub fn encode(&self, boundary: &str) -> (String, Bytes) {
        let mut body = Vec::new();
        for (name, value) in &self.fields {
            let head = format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n");
            body.extend_from_slice(head.as_bytes());
            body.extend_from_slice(value.as_bytes());
            body.extend_from_slice(b"\r\n");
        }
        for FormFile { name, media_type, bytes } in &self.files {
            let name = quoted(name);
            let media_type = media_type.as_deref().unwrap_or("application/octet-stream");
            let media_type: String = media_type.chars().filter(|c| !c.is_control()).collect();
            let head = format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"files\"; filename=\"{name}\"\r\n\
                 Content-Type: {media_type}\r\n\r\n"
            );
            body.extend_from_slice(head.as_bytes());
            body.extend_from_slice(bytes);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        (format!("multipart/form-data; boundary={boundary}"), body.into())
    }
}

/// Browsers' way: these three would end the name or the line.
fn quoted(name: &str) -> String {
    name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_has_its_fields_and_files() {
        let file =
            FormFile { name: "a\"\r\nb.csv".into(), media_type: Some("text/csv\r\nX: y".into()), bytes: "1,2".into() };
        let form = Form { fields: vec![("message", "hi\r\nthere".into())], files: vec![file] };
        let (kind, body) = form.encode("B");
        assert_eq!(kind, "multipart/form-data; boundary=B");
        assert_eq!(
            body,
            "--B\r\nContent-Disposition: form-data; name=\"message\"\r\n\r\nhi\r\nthere\r\n\
             --B\r\nContent-Disposition: form-data; name=\"files\"; filename=\"a%22%0D%0Ab.csv\"\r\n\
             Content-Type: text/csvX: y\r\n\r\n1,2\r\n--B--\r\n"
        );
    }
}
