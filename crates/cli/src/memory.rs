//! How much memory this process may use, and how much it does.

/// Memory that can be used without pushing anything out, bytes: what the system calls available,
/// within the control group's limit. `u64::MAX` where the system does not say.
pub fn available_bytes() -> u64 {
    let system = field("/proc/meminfo", "MemAvailable:").map_or(u64::MAX, |kib| kib * 1024);
    system.min(group_room().unwrap_or(u64::MAX))
}

/// Memory of the machine, bytes.
pub fn total_bytes() -> Option<u64> {
    field("/proc/meminfo", "MemTotal:").map(|kib| kib * 1024)
}

/// Resident memory of this process, bytes.
pub fn resident_bytes() -> Option<u64> {
    field("/proc/self/status", "VmRSS:").map(|kib| kib * 1024)
}

/// What the control group leaves (version 2, then version 1), bytes.
fn group_room() -> Option<u64> {
    let number =
        |path: String| -> Option<u64> { std::fs::read_to_string(path).ok()?.trim().parse().ok() };
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut room = u64::MAX;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (folder, limit, usage) = match controllers {
            "" => (format!("/sys/fs/cgroup{path}"), "memory.max", "memory.current"),
            c if c.split(',').any(|c| c == "memory") => (
                format!("/sys/fs/cgroup/memory{path}"),
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            ),
            _ => continue,
        };
        // A limit may stand at any level above.
        let mut folder = std::path::PathBuf::from(folder);
        while folder.starts_with("/sys/fs/cgroup") {
            let shown = |file: &str| folder.join(file).display().to_string();
            if let (Some(limit), Some(used)) = (number(shown(limit)), number(shown(usage))) {
                // Page cache is counted as used but is given back on demand.
                let cache = field(&shown("memory.stat"), "file").unwrap_or(0);
                room = room.min(limit.saturating_sub(used.saturating_sub(cache)));
            }
            folder.pop();
        }
    }
    (room != u64::MAX).then_some(room)
}

/// The number after `name` in a file of `name value` lines.
fn field(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|l| l.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn linux_says_how_much() {
        let total = super::total_bytes().unwrap();
        let available = super::available_bytes();
        assert!(available > 1 << 20 && available <= total, "{available} of {total}");
        assert!(super::resident_bytes().unwrap() > 1 << 20);
    }
}
