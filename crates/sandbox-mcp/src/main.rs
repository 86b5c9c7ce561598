//! One program, several roles. Which one is decided before any thread exists.

use std::process::ExitCode;

fn main() -> ExitCode {
    sandbox_linux::run_role_if_asked();
    sandbox_oci::run_role_if_asked();
    sandbox_mcp::cli::main()
}
