//! What `run` asks for: from flags, from files, from standard input.

use std::io::{IsTerminal as _, Read as _};
use std::path::Path;

use super::manifest;
use super::run::RunArgs;
use crate::connect::{Server, agent_id};
use crate::failure::Failure;
use crate::multipart::{Form, FormFile};
use crate::render::terminal;

/// What an agent is asked.
#[derive(Debug, Default)]
pub struct Request {
    /// Text.
    pub text: String,
    /// Files.
    pub files: Vec<FormFile>,
    /// Session to join.
    pub session: Option<String>,
    /// User.
    pub user: Option<String>,
    /// Further fields of the form.
    pub fields: Vec<(&'static str, String)>,
}

impl Request {
    /// As a form; `detach` asks for an answer at once instead of a stream.
    #[must_use]
    pub fn form(self, detach: bool) -> Form {
        let Self { text, files, session, user, fields } = self;
        let mut all = vec![("message", text), ("background", "true".to_owned()), ("stream", (!detach).to_string())];
        all.extend(session.map(|session| ("session_id", session)));
        all.extend(user.map(|user| ("user_id", user)));
        all.extend(fields);
        Form { fields: all, files }
    }
}

/// A request, and whom it is for.
#[derive(Debug)]
pub struct Wanted {
    /// Agent, as the user names it.
    pub agent: String,
    /// The manifest's namespace.
    pub namespace: Option<String>,
    /// The request.
    pub request: Request,
}

impl Wanted {
    /// The API's id of the agent. The manifest's namespace goes before the user's.
    #[must_use]
    pub fn agent_id(&self, server: &Server) -> String {
        agent_id(&self.agent, self.namespace.as_deref().or(server.namespace.as_deref()))
    }
}

impl RunArgs {
    /// What the flags, files and standard input ask for.
    ///
    /// # Errors
    /// When something can't be read.
    pub fn wanted(&self) -> Result<Wanted, Failure> {
        let mut wanted = match &self.filename {
            Some(path) => from_manifest(path)?,
            None => Wanted {
                agent: self.agent.clone().unwrap_or_default(),
                namespace: None,
                request: Request { text: self.asked()?, ..Request::default() },
            },
        };
        for path in &self.files {
            wanted.request.files.push(file(path)?);
        }
        let request = &mut wanted.request;
        request.session = self.session.clone().or(request.session.take());
        request.user = self.user.clone();
        Ok(wanted)
    }

    fn asked(&self) -> Result<String, Failure> {
        match text(self.text.as_deref())? {
            Some(text) => Ok(text),
            None if std::io::stdin().is_terminal() => {
                Err(Failure::Other("what is the agent asked? Give a text, or - for standard input".to_owned()))
            }
            None => read_stdin(),
        }
    }
}

/// A text of the command line; - reads standard input.
///
/// # Errors
/// When that can't be read.
pub fn text(given: Option<&str>) -> Result<Option<String>, Failure> {
    match given {
        Some("-") => read_stdin().map(Some),
        given => Ok(given.map(str::to_owned)),
    }
}

fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.map_err(|error| Failure::Other(format!("standard input can't be read: {error}")))?;
    Ok(text)
}

fn from_manifest(path: &Path) -> Result<Wanted, Failure> {
    let place = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| Failure::Other(format!("{place}: {error}")))?;
    let read = manifest::read(&text).map_err(|error| Failure::Other(format!("{place}: {error}")))?;
    let manifest::Wanted { agent, namespace, request, ignored } = read;
    if !ignored.is_empty() {
        terminal::note(&format!("{place}: {} only count for Run objects\n", ignored.join(" and ")));
    }
    Ok(Wanted { agent, namespace, request })
}

fn file(path: &Path) -> Result<FormFile, Failure> {
    let wrong = |problem: &str| Failure::Other(format!("{}: {problem}", path.display()));
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| wrong("has no name that can be sent"))?;
    let bytes = std::fs::read(path).map_err(|error| wrong(&error.to_string()))?;
    Ok(FormFile { name: name.to_owned(), media_type: None, bytes: bytes.into() })
}
