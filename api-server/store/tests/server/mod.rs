//! A PostgreSQL of its own for a test program: on a Unix socket in a temporary folder, gone when the program ends.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Starts a server as a user that is not root, tells its folder, and stops when its input is closed: also when the test
/// program is killed.
const SCRIPT: &str = r#"
set -eu
for bin in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin; do
  if [ -x "$bin/initdb" ]; then PATH="$bin:$PATH"; fi
done
command -v initdb >/dev/null || { echo "install PostgreSQL's server (Debian package postgresql)" >&2; exit 1; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/cadre-postgres.XXXXXX")
if [ "$(id -u)" = 0 ]; then
  chown postgres "$dir"
  as() { setpriv --reuid=postgres --regid=postgres --clear-groups env PATH="$PATH" "$@"; }
else
  as() { "$@"; }
fi
cd "$dir"
stop() { as pg_ctl -D "$dir/data" -m immediate stop >/dev/null 2>&1 || true; cd /; rm -rf "$dir"; }
trap stop EXIT
as initdb -D "$dir/data" -A trust -U cadre -E UTF8 --locale=C --no-sync >/dev/null
as pg_ctl -D "$dir/data" -l "$dir/log" -w -o "-k $dir -c listen_addresses='' -c max_connections=300" start >/dev/null
echo "$dir"
cat >/dev/null
"#;

struct Server {
    folder: String,
    /// Its input is the server's life.
    _script: Child,
}

static SERVER: OnceLock<Server> = OnceLock::new();
static SCHEMAS: AtomicU32 = AtomicU32::new(0);

fn server() -> &'static Server {
    SERVER.get_or_init(|| {
        let mut script =
            Command::new("sh").args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut folder = String::new();
        BufReader::new(script.stdout.take().unwrap()).read_line(&mut folder).unwrap();
        assert!(!folder.trim().is_empty(), "PostgreSQL has not started");
        Server { folder: folder.trim().to_owned(), _script: script }
    })
}

/// Parameters of a connection to the server.
pub fn url() -> String {
    format!("host={} user=cadre dbname=postgres", server().folder)
}

/// Parameters of a connection to a new, empty schema.
pub async fn new_schema() -> String {
    let name = format!("test{}", SCHEMAS.fetch_add(1, Ordering::Relaxed));
    execute(&url(), &format!("create schema {name}")).await;
    format!("{} options='-c search_path={name}'", url())
}

/// Runs statements.
pub async fn execute(url: &str, sql: &str) {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    client.batch_execute(sql).await.unwrap();
    drop(client);
    connection.await.unwrap().unwrap();
}
