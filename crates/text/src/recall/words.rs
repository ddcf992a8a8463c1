//! The words that recall documents are made of: common, short, without digits, so that a small vocabulary learned on
//! such documents holds most of them as one token. Key words and value words are disjoint.

/// First words of keys.
pub(super) const ADJECTIVES: [&str; 48] = [
    "amber", "ancient", "blue", "bold", "brave", "bright", "broad", "calm", "clever", "cold", "crimson",
    "dark", "deep", "distant", "dry", "early", "eager", "empty", "fair", "fast", "fresh", "gentle", "golden",
    "grand", "gray", "green", "happy", "heavy", "hidden", "humble", "icy", "kind", "large", "late", "light",
    "little", "lucky", "narrow", "noble", "old", "pale", "plain", "proud", "quick", "quiet", "rapid", "red",
    "rough",
];

/// Second words of keys.
pub(super) const NOUNS: [&str; 112] = [
    "acorn", "anchor", "apple", "arrow", "badge", "banner", "barn", "basket", "beacon", "bell", "bench",
    "bird", "boat", "book", "boot", "bottle", "bowl", "branch", "brick", "bridge", "brush", "bucket",
    "button", "cabin", "cable", "camel", "candle", "canoe", "castle", "cat", "chair", "clock", "cloud",
    "coat", "coin", "comet", "crown", "cup", "desk", "dog", "door", "drum", "eagle", "engine", "falcon",
    "farm", "feather", "fence", "field", "flag", "flute", "forest", "fork", "fox", "garden", "gate", "glass",
    "glove", "goat", "guitar", "hammer", "hat", "hawk", "helmet", "horse", "house", "island", "jacket",
    "jar", "kettle", "kite", "ladder", "lake", "lamp", "leaf", "lemon", "lion", "lock", "map", "market",
    "mirror", "moon", "needle", "nest", "oak", "orange", "owl", "paper", "pencil", "piano", "pillow",
    "plate", "rabbit", "ring", "road", "robot", "rope", "saddle", "sail", "shell", "ship", "shoe", "spoon",
    "star", "table", "tiger", "tower", "train", "tree", "wagon", "wheel", "window",
];

/// Values.
pub(super) const VALUES: [&str; 96] = [
    "air", "army", "art", "ball", "bank", "bay", "bread", "butter", "city", "clay", "coal", "corn", "cotton",
    "cream", "dance", "dawn", "dust", "east", "fire", "fish", "flour", "frost", "fruit", "gold", "grain",
    "grass", "hill", "honey", "hope", "ice", "ink", "iron", "ivory", "jade", "joy", "king", "lace", "law",
    "lead", "love", "luck", "maple", "meat", "milk", "mint", "mist", "money", "music", "night", "north",
    "oil", "olive", "opal", "paint", "peace", "pearl", "pepper", "pine", "plum", "poem", "queen", "rain",
    "rice", "river", "rock", "rose", "ruby", "rust", "salt", "sand", "sea", "silk", "silver", "sky", "smoke",
    "snow", "soap", "song", "south", "spice", "steam", "steel", "stone", "storm", "sugar", "summer", "sun",
    "tea", "time", "tin", "water", "wax", "west", "wind", "wine", "wool",
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
