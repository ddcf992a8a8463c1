//! Finds resources that a page would load from elsewhere. A minimal tag parser, sufficient for pages we write
//! ourselves.

/// Attributes that load a resource, and tags whose `href` does; the `href` of an ordinary link does not.
const LOADING: [&str; 6] = ["src", "srcset", "poster", "data", "background", "action"];
const LOADING_HREF: [&str; 4] = ["link", "image", "use", "base"];

/// Every load in a page that is neither `data:` nor a part of the page itself, as a short excerpt of the text.
pub fn loads(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        if let Some(comment) = rest.strip_prefix("!--") {
            rest = comment.split_once("-->").map_or("", |(_, after)| after);
            continue;
        }
        let Some(end) = tag_end(rest) else { break };
        let tag = &rest[..end];
        rest = &rest[end + 1..];
        let name = tag
            .split(|c: char| c.is_whitespace() || c == '/')
            .next()
            .unwrap_or_default()
            .to_ascii_lowercase();
        if attributes(tag).iter().any(|(attribute, value)| loads_from(&name, attribute, value)) {
            found.push(format!("<{}>", short(tag)));
        }
        if name == "style" || name == "script" {
            let body = rest.find(&format!("</{name}")).map_or(rest, |end| &rest[..end]);
            rest = &rest[body.len()..];
            // JSON is only data; addresses in it are not loaded.
            let is_data = tag.contains("json");
            let load = if name == "style" { style_load(body) } else { script_load(body) };
            found.extend(load.filter(|_| !is_data));
        }
    }
    found
}

fn loads_from(tag: &str, attribute: &str, value: &str) -> bool {
    if attribute == "style" {
        return style_load(value).is_some();
    }
    let loading = LOADING.contains(&attribute)
        || matches!(attribute, "href" | "xlink:href") && LOADING_HREF.contains(&tag);
    loading && !(value.is_empty() || value.starts_with("data:") || value.starts_with('#'))
}

/// Index of the `>` that ends a tag, ignoring those in quotes.
fn tag_end(tag: &str) -> Option<usize> {
    let mut quote = None;
    tag.char_indices().find_map(|(at, c)| {
        match (quote, c) {
            (None, '>') => return Some(at),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            _ => {}
        }
        None
    })
}

/// Names (in lower case) and values of a tag's attributes.
fn attributes(tag: &str) -> Vec<(String, &str)> {
    let mut found = Vec::new();
    let mut rest = tag;
    while let Some((before, after)) = rest.split_once('=') {
        let name =
            before.trim_end().rsplit(|c: char| c.is_whitespace() || c == '/').next().unwrap_or_default();
        let after = after.trim_start();
        let value = match after.chars().next() {
            Some(quote @ ('"' | '\'')) => after[1..].split(quote).next().unwrap_or_default(),
            _ => after.split(char::is_whitespace).next().unwrap_or_default(),
        };
        found.push((name.to_ascii_lowercase(), value.trim()));
        rest = &after[after.find(value).map_or(0, |at| at + value.len())..];
        rest = rest.strip_prefix(['"', '\'']).unwrap_or(rest);
    }
    found
}

/// The first load of a style sheet: an import, or an address other than `data:`.
fn style_load(style: &str) -> Option<String> {
    if let Some(at) = style.find("@import") {
        return Some(short(&style[at..]));
    }
    let addresses = style.match_indices("url(").map(|(at, found)| (at, &style[at + found.len()..]));
    let outside = addresses.map(|(at, value)| (at, value.trim_start_matches(['"', '\'', ' '])));
    let mut outside = outside.filter(|(_, value)| !value.starts_with("data:") && !value.starts_with('#'));
    outside.next().map(|(at, _)| short(&style[at..]))
}

/// The first address in a script, except names of XML namespaces.
fn script_load(script: &str) -> Option<String> {
    let mut addresses = script.match_indices("http").map(|(at, _)| &script[at..]).filter(|address| {
        let rest = address.strip_prefix("https").or(address.strip_prefix("http")).unwrap_or_default();
        rest.starts_with("://") && !rest.starts_with("://www.w3.org/")
    });
    addresses.next().map(short)
}

/// The beginning of a text, on one line.
fn short(text: &str) -> String {
    text.chars().take(60).map(|c| if c == '\n' { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_distinguished_from_links_and_names() {
        let cases: [(&str, usize); 14] = [
            ("<a href=\"https://site.org\">site</a> https://site.org", 0),
            ("<svg xmlns='http://www.w3.org/2000/svg'><use href='#a'/></svg>", 0),
            ("<img src=\"data:image/png;base64,AA==\"><image xlink:href='b.png'/>", 1),
            ("<script src=\"https://cdn.org/a.js\"></script>", 1),
            ("<link rel=\"stylesheet\"\n href='style.css'>", 1),
            ("<meta charset=utf-8><link rel=icon href=data:,>", 0),
            ("<style>@import 'a.css'; p { color: red }</style>", 1),
            ("<style>p { background: url( \"data:x\" ) } q { mask: url(#m) }</style>", 0),
            ("<p style=\"background: url('a.png')\">", 1),
            ("<script>fetch('http://x.org/' + a < b)</script><img src=x>", 2),
            ("<script>let ns = 'http://www.w3.org/2000/svg';</script>", 0),
            ("<script type=\"application/json\">{\"a\": \"https://x.org <img src=y>\"}</script>", 0),
            ("<!-- <img src=a.png> --><p title='a > b' lang=en>x = y</p>", 0),
            ("<img alt='src=x'", 0),
        ];
        for (page, expected) in cases {
            assert_eq!(loads(page).len(), expected, "{page}: {:?}", loads(page));
        }
    }
}
