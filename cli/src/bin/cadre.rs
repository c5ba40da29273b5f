//! `cadre`.

fn main() -> std::process::ExitCode {
    cadre_cli::main()
}
