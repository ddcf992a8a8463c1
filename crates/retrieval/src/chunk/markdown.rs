//! Chunks of Markdown: never across a heading; lists are split between items, tables between rows, code between lines.

use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::plain::split;
use super::{Chunk, heading, packed};

/// A block of the outermost level.
struct Block {
    range: Range<usize>,
    kind: Kind,
    /// Items of a list, or rows of a table, its head included.
    parts: Vec<Range<usize>>,
}

/// Kind of a block.
#[derive(PartialEq)]
enum Kind {
    Heading(usize, String),
    Table,
    List,
    Other,
}

/// Chunks of a Markdown text.
pub fn markdown(text: &str, most: usize) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut path: Vec<(usize, String)> = Vec::new();
    let mut section: Vec<Block> = Vec::new();
    // The start of headings without a text of their own, which begin the chunk of the next section.
    let mut open: Option<usize> = None;
    for block in blocks(text) {
        let Kind::Heading(level, words) = &block.kind else {
            section.push(block);
            continue;
        };
        close(text, most, (&path, &mut open), &mut section, &mut chunks);
        path.retain(|(above, _)| above < level);
        path.push((*level, words.clone()));
        open.get_or_insert(block.range.start);
    }
    close(text, most, (&path, &mut open), &mut section, &mut chunks);
    if let (Some(start), true) = (open, chunks.is_empty()) {
        chunks.extend(split(text, start..text.len(), most).into_iter().map(|range| Chunk::of(range, &[])));
    }
    chunks
}

/// Turns a section into chunks.
fn close(
    text: &str,
    most: usize,
    (path, open): (&[(usize, String)], &mut Option<usize>),
    section: &mut Vec<Block>,
    chunks: &mut Vec<Chunk>,
) {
    let Some(first) = section.first_mut() else { return };
    // The heading's own line is part of the first chunk, if it fits.
    if let Some(start) = open.take().filter(|start| first.range.end - start <= most) {
        first.range.start = start;
    }
    let headings: Vec<String> = path.iter().map(|(_, words)| words.clone()).collect();
    let mut small: Vec<Range<usize>> = Vec::new();
    let flush = |small: &mut Vec<Range<usize>>, chunks: &mut Vec<Chunk>| {
        let joined = packed(small.drain(..), most);
        chunks.extend(
            joined
                .into_iter()
                .flat_map(|range| split(text, range, most))
                .map(|range| Chunk::of(range, &headings)),
        );
    };
    for block in section.drain(..) {
        if block.range.len() <= most {
            small.push(block.range);
            continue;
        }
        match block.kind {
            Kind::Table => {
                flush(&mut small, chunks);
                chunks.extend(table(text, most, &block, &headings));
            }
            Kind::List => {
                let items = block.parts.iter().flat_map(|item| split(text, item.clone(), most));
                small.extend(items);
            }
            _ => small.extend(split(text, block.range, most)),
        }
    }
    flush(&mut small, chunks);
}

/// Chunks of a large table: each begins with the table's head.
fn table(text: &str, most: usize, block: &Block, headings: &[String]) -> Vec<Chunk> {
    let Some((head, rows)) = block.parts.split_first() else { return Vec::new() };
    let lead = text[head.clone()].trim_end();
    // A head that takes most of a chunk is not repeated.
    let lead = if lead.len() > most / 2 { "" } else { lead };
    let room = most - lead.len();
    let rows = rows.iter().flat_map(|row| split(text, row.clone(), room));
    let chunk = |(at, range): (usize, Range<usize>)| {
        let lead = if at == 0 { String::new() } else { format!("{lead}\n") };
        let range = if at == 0 { block.range.start..range.end } else { range };
        Chunk { range, headings: headings.to_vec(), lead }
    };
    packed(rows, room).into_iter().enumerate().map(chunk).collect()
}

/// Blocks of the outermost level, in order.
fn blocks(text: &str) -> Vec<Block> {
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_YAML_STYLE_METADATA_BLOCKS;
    let mut blocks: Vec<Block> = Vec::new();
    let (mut depth, mut words) = (0usize, None::<String>);
    for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
        match event {
            Event::Start(tag) => {
                if depth == 0 && !matches!(tag, Tag::MetadataBlock(_)) {
                    let kind = match &tag {
                        Tag::Heading { .. } => {
                            words = Some(String::new());
                            Kind::Other
                        }
                        Tag::Table(_) => Kind::Table,
                        Tag::List(_) => Kind::List,
                        _ => Kind::Other,
                    };
                    blocks.push(Block { range, kind, parts: Vec::new() });
                } else if depth == 1
                    && matches!(tag, Tag::Item | Tag::TableHead | Tag::TableRow)
                    && let Some(block) = blocks.last_mut()
                {
                    block.parts.push(range);
                }
                depth += 1;
            }
            Event::End(end) => {
                depth = depth.saturating_sub(1);
                if depth == 0
                    && let (TagEnd::Heading(level), Some(words), Some(block)) =
                        (end, words.take(), blocks.last_mut())
                {
                    block.kind = Kind::Heading(level as usize, heading(&words));
                }
            }
            Event::Text(part) | Event::Code(part) => {
                if let Some(words) = &mut words {
                    words.push_str(&part);
                }
            }
            // Such as raw HTML and rules between blocks.
            _ if depth == 0 => blocks.push(Block { range, kind: Kind::Other, parts: Vec::new() }),
            _ => {}
        }
    }
    // The line under the head of a table belongs to the head.
    for block in blocks.iter_mut().filter(|block| block.kind == Kind::Table && block.parts.len() > 1) {
        block.parts[0].end = block.parts[1].start;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, most: usize) -> Vec<(String, String)> {
        let chunk = |chunk: Chunk| (chunk.headings.join(" > "), chunk.lead + &text[chunk.range]);
        markdown(text, most).into_iter().map(chunk).collect()
    }

    fn check(text: &str, most: usize, expected: &[(&str, &str)]) {
        let found = found(text, most);
        let found: Vec<(&str, &str)> = found.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_section_is_a_chunk_under_its_headings() {
        check(
            "intro\n\n# A `b`\n\none\n\n## C\n\ntwo\n\nthree\n\n# D\n\nfour\n",
            100,
            &[
                ("", "intro"),
                ("A b", "# A `b`\n\none"),
                ("A b > C", "## C\n\ntwo\n\nthree"),
                ("D", "# D\n\nfour"),
            ],
        );
        check("# A\n\n## B\n\ntext\n", 100, &[("A > B", "# A\n\n## B\n\ntext")]);
        check("# Only\n", 100, &[("", "# Only")]);
        check("---\ntitle: x\n---\n\nbody\n", 100, &[("", "body")]);
    }

    #[test]
    fn a_large_table_repeats_its_head_and_keeps_rows_whole() {
        let text = "# T\n\n| a | b |\n|---|---|\n| 1 | one |\n| 2 | two |\n| 3 | three |\n";
        let found = found(text, 50);
        assert!(found.len() > 1, "{found:?}");
        assert!(
            found.iter().all(|(path, text)| path == "T" && text.contains("| a | b |\n|---|---|")),
            "{found:?}"
        );
        let all: String = found.iter().map(|(_, text)| text.as_str()).collect();
        assert!(["| 1 | one |", "| 2 | two |", "| 3 | three |"].iter().all(|row| all.contains(row)), "{all}");
    }

    #[test]
    fn a_large_list_is_split_between_items() {
        check(
            "- one is here\n- two is here\n- three is here\n",
            30,
            &[("", "- one is here\n- two is here"), ("", "- three is here")],
        );
    }
}
