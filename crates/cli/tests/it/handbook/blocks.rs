//! Fenced blocks and links of a Markdown page.

/// A fenced block.
pub struct Block {
    /// Line of its fence, from 1.
    pub line: usize,
    /// Text after the fence.
    pub mark: String,
    /// Text inside.
    pub body: String,
}

/// All fenced blocks, in order.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut open = false;
    for (index, line) in page.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(_) if open => open = false,
            Some(mark) => {
                open = true;
                found.push(Block { line: index + 1, mark: mark.trim().to_string(), body: String::new() });
            }
            None => {
                if let Some(block) = found.last_mut().filter(|_| open) {
                    block.body += line;
                    block.body.push('\n');
                }
            }
        }
    }
    assert!(!open, "a block is not closed");
    found
}

/// Targets of links to files and sections.
pub fn links(page: &str) -> Vec<String> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    targets.filter(|target| !target.contains("://")).map(str::to_string).collect()
}

/// Anchors of the page's sections.
pub fn sections(page: &str) -> impl Iterator<Item = String> {
    page.lines().filter_map(|line| line.strip_prefix('#')).map(|heading| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        words
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .collect::<String>()
            .replace(' ', "-")
    })
}
