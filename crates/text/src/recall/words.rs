//! Words of recall documents: common, short and without digits, so that even a small vocabulary trained on such
//! documents has most of them as single tokens. Key words and value words are disjoint.

/// First words of keys.
pub(super) const ADJECTIVES: [&str; 48] = [
    "amber", "ancient", "blue", "bold", "brave", "bright", "broad", "calm", "clever", "cold", "crimson",
    "dark", "deep", "distant", "dry", "early", "eager", "empty", "fair", "fast", "fresh", "gentle", "golden",
    "grand", "gray", "green", "happy", "heavy", "hidden", "humble", "icy", "kind", "large", "late", "light",
    "little", "lucky", "narrow", "noble", "old", "pale", "plain", "proud", "quick", "quiet", "rapid", "red",
    "rough",
];

/// Second words of keys.
pub(super) const NOUNS: [&str; 65] = [
    "anchor", "apple", "basket", "bell", "bench", "bird", "book", "boot", "bottle", "bowl", "branch",
    "brick", "bucket", "cable", "candle", "castle", "cat", "chair", "clock", "coat", "coin", "crown", "cup",
    "desk", "door", "fence", "field", "flag", "forest", "fork", "fox", "gate", "glass", "glove", "goat",
    "hat", "hawk", "helmet", "horse", "house", "island", "jacket", "kite", "lake", "leaf", "lock", "map",
    "mirror", "needle", "orange", "paper", "pencil", "ring", "robot", "shell", "ship", "shoe", "star",
    "table", "tiger", "tower", "train", "tree", "wheel", "window",
];

pub(super) const VALUES: [&str; 58] = [
    "art", "bank", "bread", "clay", "coal", "corn", "dust", "east", "fire", "fish", "gold", "grass", "hill",
    "honey", "hope", "ice", "ink", "iron", "jade", "king", "law", "lead", "love", "luck", "milk", "mint",
    "music", "night", "north", "oil", "paint", "peace", "pine", "plum", "rain", "rice", "river", "rock",
    "rose", "salt", "sand", "sea", "silk", "silver", "sky", "snow", "south", "steel", "stone", "sugar",
    "sun", "tea", "time", "water", "wax", "west", "wind", "wine",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_distinct() {
        let mut all: Vec<&str> = [&ADJECTIVES[..], &NOUNS, &VALUES].concat();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
