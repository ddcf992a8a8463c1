//! What the environment says of the pretended devices, read once.

use std::sync::OnceLock;

/// When work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// When somebody waits for it.
    Late,
    /// When it is submitted.
    Early,
    /// Anything in between, by a seed.
    Seeded(u64),
}

/// See the crate's table.
#[derive(Clone, Debug)]
pub struct Settings {
    /// When work runs.
    pub schedule: Schedule,
    /// Nothing is computed.
    pub dry: bool,
    /// How many devices there are.
    pub devices: usize,
    /// Memory of each, in bytes.
    pub memory: u64,
    /// Calls of the driver that it does not support.
    pub refused: Vec<String>,
    /// What cuBLASLt says that it is.
    pub cublas: usize,
}

/// The version whose header products of groups are from.
const CUBLAS: u64 = 131_000;
/// Memory of an H200 as its driver says it.
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

    /// What a schedule's choices begin with; never zero.
    pub fn seed(&self) -> u64 {
        match self.schedule {
            Schedule::Seeded(seed) => seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            Schedule::Late | Schedule::Early => 1,
        }
    }
}

/// The environment's, as it was when they were first asked for.
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
