//! A PostgreSQL of its own, with the settings that it comes with: on a Unix socket in a temporary folder, gone when its
//! value is, or when this program ends.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// Starts a server as a user that is not root and tells its folder. Ends with its input: also when this program is killed.
const SCRIPT: &str = r#"
set -eu
for bin in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin; do
  if [ -x "$bin/initdb" ]; then PATH="$bin:$PATH"; fi
done
command -v initdb >/dev/null || { echo "install PostgreSQL's server (Debian package postgresql)" >&2; exit 1; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/cadre-bench.XXXXXX")
if [ "$(id -u)" = 0 ]; then
  chown postgres "$dir"
  as() { setpriv --reuid=postgres --regid=postgres --clear-groups env PATH="$PATH" "$@"; }
else
  as() { "$@"; }
fi
cd "$dir"
control() { as pg_ctl -D "$dir/data" "$@" >/dev/null </dev/null; }
end() { control -m immediate stop 2>/dev/null || true; cd /; rm -rf "$dir"; }
trap end EXIT
as initdb -D "$dir/data" -A trust -U cadre -E UTF8 --locale=C >/dev/null </dev/null
control -l "$dir/log" -w -o "-k $dir -c listen_addresses=''" start
head -n 1 "$dir/data/postmaster.pid"
echo "$dir"
cat >/dev/null
"#;

/// The server.
pub struct Postgres {
    folder: String,
    pid: u32,
    /// Its input is the server's life.
    script: Child,
}

impl Postgres {
    /// Whether its programs are on this machine.
    pub fn is_installed() -> bool {
        let look =
            "for bin in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin; do PATH=\"$bin:$PATH\"; done; command -v initdb";
        let found = Command::new("sh").args(["-c", look]).stdout(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    }

    /// Starts a server with an empty database. Blocks.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start() -> Result<Self> {
        let mut command = Command::new("sh");
        let mut script = command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(script.stdout.take().context("the script has no output")?).lines();
        let mut line = || lines.next().transpose().map(Option::unwrap_or_default);
        let pid = line()?.parse().context("PostgreSQL does not start")?;
        let folder = line()?;
        ensure!(!folder.is_empty(), "PostgreSQL does not start");
        Ok(Self { folder, pid, script })
    }

    /// Its first process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The folder of its socket. User `cadre`, database `postgres`, no password.
    pub fn folder(&self) -> &str {
        &self.folder
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Waits until nothing is left of it.
        drop(self.script.stdin.take());
        let _ = self.script.wait();
    }
}
