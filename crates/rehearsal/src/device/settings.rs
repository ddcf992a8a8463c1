//! Settings of the simulated devices from the environment, read once.

use std::sync::OnceLock;

/// Time at which work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// When something waits for it.
    Late,
    /// When it is submitted.
    Early,
    /// At a random time in between, from a seed.
    Seeded(u64),
}

/// Settings; see the crate's table.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Time at which work runs.
    pub schedule: Schedule,
    /// True if nothing is computed.
    pub dry: bool,
    /// Number of devices.
    pub devices: usize,
    /// Memory per device in bytes.
    pub memory: u64,
    /// Driver functions that are reported as unsupported.
    pub refused: Vec<String>,
    /// Version reported by cuBLASLt.
    pub cublas: usize,
}

/// The version from whose header grouped products are taken.
const CUBLAS: u64 = 131_000;
/// Memory of an H200 as reported by its driver.
const H200: u64 = 150_109_880_320;

impl Settings {
    fn from(variable: impl Fn(&str) -> Option<String>) -> Settings {
        let number = |name: &str, otherwise: u64| {
            let Some(value) = variable(name) else { return otherwise };
            value.parse().unwrap_or_else(|_| panic!("{name}={value}: not a number"))
        };
        let schedule = match variable("FATHOM_REHEARSAL_SCHEDULE").as_deref() {
            None | Some("" | "late") => Schedule::Late,
            Some("early") => Schedule::Early,
            Some(_) => Schedule::Seeded(number("FATHOM_REHEARSAL_SCHEDULE", 0)),
        };
        let dry = match variable("FATHOM_REHEARSAL").as_deref() {
            None | Some("") => false,
            Some("dry") => true,
            Some(other) => panic!("FATHOM_REHEARSAL={other}: dry, or nothing"),
        };
        Settings {
            schedule,
            dry,
            devices: number("FATHOM_REHEARSAL_DEVICES", 1) as usize,
            memory: number("FATHOM_REHEARSAL_MEMORY", H200),
            refused: variable("FATHOM_REHEARSAL_REFUSED")
                .map_or_else(Vec::new, |names| names.split(',').map(str::to_string).collect()),
            cublas: number("FATHOM_REHEARSAL_CUBLAS", CUBLAS) as usize,
        }
    }

    /// Initial random state of a schedule; never zero.
    pub fn seed(&self) -> u64 {
        match self.schedule {
            Schedule::Seeded(seed) => seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            Schedule::Late | Schedule::Early => 1,
        }
    }
}

/// The settings at the time of the first call.
pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings::from(|name| std::env::var(name).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_and_what_is_absent_has_a_default() {
        let none = Settings::from(|_| None);
        assert_eq!((none.schedule, none.dry, none.devices, none.memory), (Schedule::Late, false, 1, H200));
        assert!(none.refused.is_empty());
        assert_eq!(none.cublas, 131_000);
        let some = Settings::from(|name| {
            let value = match name {
                "FATHOM_REHEARSAL_SCHEDULE" => "7",
                "FATHOM_REHEARSAL" => "dry",
                "FATHOM_REHEARSAL_REFUSED" => "cuMemCreate,cuMemHostAlloc",
                _ => "2",
            };
            Some(value.to_string())
        });
        assert_eq!((some.schedule, some.dry, some.devices, some.memory), (Schedule::Seeded(7), true, 2, 2));
        assert_eq!(some.refused, ["cuMemCreate", "cuMemHostAlloc"]);
        assert_eq!(some.cublas, 2);
    }
}
