//! The program of a PostgreSQL of its own: on a Unix socket in a temporary folder, gone when its value is, or when the
//! test program ends.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Starts a server as a user that is not root and tells its folder, then stops and starts it when it is told to. Ends
/// with its input: also when the test program is killed.
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
control() { as pg_ctl -D "$dir/data" "$@" >/dev/null </dev/null; }
# It crashes, but the machine does not: what it has written is there without waiting for the disk.
common="-c listen_addresses='' -c max_connections=300 -c fsync=off -c autovacuum=off"
options="-k $dir $common"
start() { control -l "$dir/log" -w -t 300 -o "$options" start; }
standby() { as pg_ctl -D "$dir/standby/data" "$@" >/dev/null </dev/null; }
sql() { as psql -h "$dir" -U cadre -d postgres -qAtc "$1" </dev/null; }
# A second server that follows: a commit waits until it has it.
follow() {
  as mkdir "$dir/standby"
  as pg_basebackup -h "$dir" -U cadre -D "$dir/standby/data" -R -X stream -c fast --no-sync >/dev/null </dev/null
  standby -l "$dir/standby/log" -w -t 300 -o "-k $dir/standby $common" start
  sql "alter system set synchronous_standby_names = '*'"
  sql "select pg_reload_conf()"
  until [ "$(sql 'select sync_state from pg_stat_replication')" = sync ]; do sleep 0.02; done
}
# A small disk of its own for a database. Only root can make one.
small() {
  mkdir "$dir/small"
  mount -t tmpfs -o size=24m,mode=700,uid="$(id -u postgres)",gid="$(id -g postgres)" tmpfs "$dir/small"
  sql "create tablespace small location '$dir/small'"
  sql "create database $1 tablespace small"
}
end() {
  standby -m immediate stop 2>/dev/null || true
  control -m immediate stop 2>/dev/null || true
  umount "$dir/small" 2>/dev/null || true
  cd /
  rm -rf "$dir"
}
trap end EXIT
trap 'exit 1' INT TERM
as initdb -D "$dir/data" -A trust -U cadre -E UTF8 --locale=C.UTF-8 --no-sync >/dev/null </dev/null
start
echo "$dir"
while read -r order; do
  case "$order" in
    crash) control -m immediate -w stop ;;
    start) start ;;
    follow) follow >/dev/null ;;
    promote) standby -w -t 300 promote ;;
    small*) small "${order#small }" >/dev/null ;;
    create*) sql "create database ${order#create }" ;;
  esac
  echo done
done
"#;

/// The server.
pub struct Process {
    folder: String,
    /// Its input is the server's life.
    script: Child,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a server with an empty database. Blocks.
    pub fn start() -> Self {
        let mut script =
            Command::new("sh").args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(script.stdout.take().unwrap());
        let mut process = Self { folder: String::new(), script, answers };
        process.folder = process.answer();
        process
    }

    /// The folder of its socket. User `cadre`, database `postgres`.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// Ends the server as a crash does. What was committed stays.
    pub fn crash(&mut self) {
        self.order("crash");
    }

    /// Starts it again after a crash.
    pub fn start_again(&mut self) {
        self.order("start");
    }

    /// Starts a standby beside it, which has all that is committed from now on. Its socket is in `standby` of the folder.
    pub fn follow(&mut self) {
        self.order("follow");
    }

    /// The standby becomes a server that can be written.
    pub fn promote(&mut self) {
        self.order("promote");
    }

    /// Makes a database on a disk of 24 MiB. Only root can.
    pub fn create_small(&mut self, name: &str) {
        self.order(&format!("small {name}"));
    }

    /// Makes another empty database.
    pub fn create(&mut self, name: &str) {
        self.order(&format!("create {name}"));
    }

    fn order(&mut self, order: &str) {
        writeln!(self.script.stdin.as_mut().unwrap(), "{order}").unwrap();
        assert_eq!(self.answer(), "done");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "PostgreSQL does not do what it was told");
        line.trim_end().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Waits until nothing is left of it.
        drop(self.script.stdin.take());
        let _ = self.script.wait();
    }
}
