//! Numbers that are written as `null` if they are not finite, and read back as NaN.

use serde::{Deserialize, Deserializer, Serializer};

pub fn serialize<S: Serializer>(x: &f64, to: S) -> Result<S::Ok, S::Error> {
    if x.is_finite() { to.serialize_f64(*x) } else { to.serialize_none() }
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}
