//! How much memory this process may use, and how much it does.

/// Memory that can be used without pushing anything out, bytes: what the system calls available,
/// within the control group's limit, the process's own and what the system promises. `u64::MAX`
/// where the system does not say.
pub fn available_bytes() -> u64 {
    let system = field("/proc/meminfo", "MemAvailable:").map_or(u64::MAX, |kib| kib * 1024);
    let others = [group_room(), process_room(), promised_room()];
    others.into_iter().flatten().fold(system, u64::min)
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

/// What limits of the process (`ulimit -v`, `-d`) leave, bytes. Stacks of threads, their heaps and
/// mapped files take of it too: a quarter is theirs.
fn process_room() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let room = |(name, used): (&str, &str)| -> Option<u64> {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        let limit: u64 = line.split_whitespace().next()?.parse().ok()?; // "unlimited" is none
        let used = field("/proc/self/status", used)? * 1024;
        Some(limit.saturating_sub(used) / 4 * 3)
    };
    [("Max address space", "VmSize:"), ("Max data size", "VmData:")]
        .into_iter()
        .filter_map(room)
        .min()
}

/// What the system still promises, where it promises no more than it has, bytes.
fn promised_room() -> Option<u64> {
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").ok()?;
    let number = |name| field("/proc/meminfo", name);
    let room = number("CommitLimit:")?.saturating_sub(number("Committed_AS:")?) * 1024;
    (mode.trim() == "2").then_some(room)
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
