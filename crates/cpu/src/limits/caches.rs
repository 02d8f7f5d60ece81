//! How large this machine's caches are, as the system says.

use std::path::Path;

/// Sizes of the caches this process sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// Second level, one core's, bytes.
    pub l2_bytes: usize,
    /// Third level, all of it, bytes; 0 where there is none.
    pub l3_bytes: usize,
}

/// Taken where the system says nothing: usual for a small server.
const UNKNOWN: Caches = Caches { l2_bytes: 1 << 20, l3_bytes: 32 << 20 };

/// The caches of this machine; a guess where the system is silent.
pub fn caches() -> Caches {
    from_folder(Path::new("/sys/devices/system/cpu")).unwrap_or(UNKNOWN)
}

/// Reads what Linux says: one folder a processor, in it one folder a cache.
fn from_folder(processors: &Path) -> Option<Caches> {
    let mut caches = Caches { l2_bytes: 0, l3_bytes: 0 };
    let mut seen = Vec::new();
    for processor in std::fs::read_dir(processors).ok()?.filter_map(Result::ok) {
        let Ok(indexes) = std::fs::read_dir(processor.path().join("cache")) else { continue };
        for index in indexes.filter_map(Result::ok) {
            let text = |file| std::fs::read_to_string(index.path().join(file)).unwrap_or_default();
            let bytes = bytes(text("size").trim()).unwrap_or(0);
            match text("level").trim() {
                "2" => caches.l2_bytes = caches.l2_bytes.max(bytes),
                "3" => {
                    // A cache is listed under every processor that shares it.
                    let sharers = text("shared_cpu_list");
                    if !seen.contains(&sharers) {
                        seen.push(sharers);
                        caches.l3_bytes += bytes;
                    }
                }
                _ => {}
            }
        }
    }
    (caches.l2_bytes > 0).then_some(caches)
}

/// Such as `2048K`.
fn bytes(size: &str) -> Option<usize> {
    let (digits, shift) = match size.strip_suffix(['K', 'M']) {
        Some(digits) => (digits, if size.ends_with('K') { 10 } else { 20 }),
        None => (size, 0),
    };
    digits.parse::<usize>().ok()?.checked_shl(shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let cases = [("2048K", Some(2 << 20)), ("260M", Some(260 << 20)), ("512", Some(512))];
        for (text, expect) in cases.into_iter().chain([("", None), ("xK", None)]) {
            assert_eq!(bytes(text), expect, "{text}");
        }
    }

    #[test]
    fn shared_caches_count_once() {
        let folder = std::env::temp_dir().join(format!("tokenmill-caches-{}", std::process::id()));
        // Four processors; pairs share a third level.
        for (cpu, sharers) in ["0-1", "0-1", "2-3", "2-3"].into_iter().enumerate() {
            let own = cpu.to_string();
            for (index, level, size, shared) in
                [(0, "1", "48K", &*own), (2, "2", "2048K", &*own), (3, "3", "32768K", sharers)]
            {
                let cache = folder.join(format!("cpu{cpu}/cache/index{index}"));
                std::fs::create_dir_all(&cache).expect("a folder");
                for (file, text) in [("level", level), ("size", size), ("shared_cpu_list", shared)]
                {
                    std::fs::write(cache.join(file), format!("{text}\n")).expect("a file");
                }
            }
        }
        let found = from_folder(&folder);
        std::fs::remove_dir_all(&folder).expect("cleaned");
        assert_eq!(found, Some(Caches { l2_bytes: 2 << 20, l3_bytes: 64 << 20 }));
        assert_eq!(from_folder(Path::new("/nowhere")), None);
    }
}
