//! What runtimes say when they fail, in words that a person can act on. Pure.

/// What is known about a runtime's complaint: what it means, and what to do. Nothing, if it is not known.
pub fn known(said: &str) -> Option<(&'static str, &'static str)> {
    KNOWN.iter().find(|(sign, ..)| said.contains(sign)).map(|(_, means, fix)| (*means, *fix))
}

/// The last lines of what a runtime said, with what they mean.
pub fn explain(said: &str) -> String {
    let lines: Vec<&str> = said.lines().map(message).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(3)..].join(" / ");
    const SILENT: &str =
        "it said nothing. Is it an OCI runtime? `oci_runtime` in the settings (SANDBOX_MCP_OCI_RUNTIME) names one";
    let last = if last.is_empty() { SILENT.to_owned() } else { shortened(&last) };
    match known(said) {
        Some((means, fix)) => format!("{means}. {fix}. It said: {last}"),
        None => last,
    }
}

/// A line of gVisor's log without when and where it was written: `W1118 03:17:15.491400       1 util.go:64] WORDS`.
fn message(line: &str) -> &str {
    let line = line.trim();
    let of_a_log = line.starts_with(['I', 'W', 'E', 'F']) && line.chars().skip(1).take(4).all(|c| c.is_ascii_digit());
    line.split_once("] ").filter(|_| of_a_log && line.len() > 5).map_or(line, |(_, words)| words.trim())
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 600;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}

const KNOWN: [(&str, &str, &str); 9] = [
    (
        "cannot run with network enabled in root network namespace",
        "this runsc takes its network for the machine's own, as versions up to 2024 do on Linux 6.11 and newer (gVisor issue 10704)",
        "Use it without `--network=sandbox`: sandbox-mcp asks for `--network=none`, so a wrapper around runsc adds another",
    ),
    (
        "rmem_default",
        "this runsc takes its network for the machine's own, as versions up to 2024 do on Linux 6.11 and newer (gVisor issue 10704)",
        "Use it without `--network=sandbox`: sandbox-mcp asks for `--network=none`, so a wrapper around runsc adds another",
    ),
    (
        "flag provided but not defined",
        "this runsc is too old: it does not know all that is asked of it",
        "On Debian 12 install the newer one with `sudo apt-get install -t bookworm-backports runsc`",
    ),
    (
        "platform \"systrap\"",
        "this runsc is too old for the platform systrap, which came in 2023",
        "On Debian 12 install the newer one with `sudo apt-get install -t bookworm-backports runsc`",
    ),
    (
        "unknown platform",
        "this runsc is too old for the platform systrap, which came in 2023",
        "On Debian 12 install the newer one with `sudo apt-get install -t bookworm-backports runsc`",
    ),
    (
        "cgroups in hybrid mode not supported",
        "crun does not work where both versions of cgroups are mounted, as here",
        "Use runc or runsc (`oci_runtime` in the settings), or boot with `systemd.unified_cgroup_hierarchy=1`",
    ),
    (
        "drop all controllers from cgroupv2",
        "crun does not work where both versions of cgroups are mounted, as here",
        "Use runc or runsc (`oci_runtime` in the settings), or boot with `systemd.unified_cgroup_hierarchy=1`",
    ),
    (
        "/dev/kvm",
        "gVisor's platform kvm does not work here",
        "sandbox-mcp asks for systrap, so a wrapper around runsc or its configuration chooses kvm: remove that",
    ),
    (
        "clone3: operation not permitted",
        "this machine does not let programs make namespaces",
        "`sandbox-mcp doctor` says what to change for the embedded backend, and the same helps here",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trap_is_explained_with_what_to_do() {
        let said = "running container: creating container: cannot create sandbox: cannot run with network enabled in root network namespace";
        let told = explain(said);
        assert!(told.contains("10704") && told.contains("--network=none") && told.contains("It said: "), "{told}");
        assert!(explain("flag provided but not defined: -host-uds\nUsage: …").contains("bookworm-backports"));
        assert!(
            explain("error: cgroups in hybrid mode not supported, drop all controllers from cgroupv2").contains("runc")
        );
    }

    #[test]
    fn what_is_not_known_is_told_as_it_was_said() {
        assert_eq!(explain("a\nb\n\nc\nd\n"), "b / c / d");
        assert_eq!(
            explain("W1118 03:17:15.491400       1 util.go:64] FATAL ERROR: no [such] thing"),
            "FATAL ERROR: no [such] thing"
        );
        assert_eq!(explain("Error: [1] no"), "Error: [1] no");
        let nothing = explain("");
        assert!(nothing.starts_with("it said nothing") && nothing.contains("oci_runtime"), "{nothing}");
        assert!(explain(&"ä".repeat(5000)).len() < 2000);
    }
}
