//! Resident memory of this process as counted by the kernel. Linux only; elsewhere every value is `None`.

use std::fs;

/// Returns the present anonymous resident size in bytes (`RssAnon`): heap and stacks, without mapped files.
pub fn anonymous_bytes() -> Option<u64> {
    field("RssAnon:")
}

/// Returns the peak resident size of this process in bytes (`VmHWM`), mapped files included.
pub fn peak_bytes() -> Option<u64> {
    field("VmHWM:")
}

/// Resets the peak, so that [`peak_bytes`] counts from now on. Returns whether the kernel accepted it.
pub fn reset_peak() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Peak anonymous resident size over the observed moments. The kernel keeps no such figure.
#[derive(Clone, Debug, Default)]
pub struct PeakAnonymous {
    peak_bytes: u64,
}

impl PeakAnonymous {
    /// Samples the present size and returns it (0 if it cannot be read).
    pub fn observe(&mut self) -> u64 {
        let now = anonymous_bytes().unwrap_or(0);
        self.peak_bytes = self.peak_bytes.max(now);
        now
    }

    /// Returns the largest observed size in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }
}

fn field(name: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    kib_field(&status, name).map(|kib| kib * 1024)
}

/// Returns the number of a line such as `RssAnon:  1234 kB`.
pub(crate) fn kib_field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_status_lines() {
        assert_eq!(kib_field("Name:\tx\nRssAnon:\t    1234 kB\n", "RssAnon:"), Some(1234));
        assert_eq!(kib_field("Name:\tx\n", "RssAnon:"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn sees_an_allocation() {
        // Other tests of this process free memory at the same time: one of the attempts should be undisturbed.
        let seen = (0..50).any(|_| {
            let before = anonymous_bytes().unwrap();
            let block = std::hint::black_box(vec![1u8; 32 << 20]);
            let mut peak = PeakAnonymous::default();
            let now = peak.observe();
            assert_eq!(peak.peak_bytes(), now);
            std::hint::black_box(block).len() == 32 << 20 && now > before + (24 << 20)
        });
        assert!(seen, "no allocation of 32 MiB was seen");
        assert!(peak_bytes().unwrap() >= field("VmRSS:").unwrap() / 2);
    }
}
