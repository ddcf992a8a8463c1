//! Kinds of sites: news, blog, forum, documentation, shop.

use super::page::{LabelledPage, Page};
use super::words::{Dice, label, paragraph, person, sentence, title};

/// Generates page number `index` of a set.
pub(super) fn page(seed: u64, index: usize) -> LabelledPage {
    let mut dice = Dice::new(seed ^ (index as u64).wrapping_mul(0x2545_f491_4f6c_dd1d));
    let semantic = dice.one_in(2);
    let mut page = Page { dice, html: String::new(), with: Vec::new(), without: Vec::new(), semantic };
    let name = title(&mut page.dice);
    page.push(&format!(
        "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8><title>{name} - Site</title>"
    ));
    let kilobytes = page.dice.between(2, 60);
    page.ballast(kilobytes);
    page.push("</head><body>");
    if page.dice.one_in(2) {
        page.cookie_note();
    }
    match index % 5 {
        0 => page.news(&name),
        1 => page.blog(&name),
        2 => page.forum(&name),
        3 => page.docs(&name),
        _ => page.shop(&name),
    }
    page.site_footer();
    let kilobytes = page.dice.between(1, 20);
    page.ballast(kilobytes);
    page.push("</body></html>\n");
    LabelledPage { html: page.html, with: page.with, without: page.without }
}

impl Page {
    /// Paragraphs of an article; the first, a middle one and the last are labelled.
    fn body(&mut self, low: usize, high: usize) {
        let count = self.dice.between(low, high);
        for i in 0..count {
            let sentences = paragraph(&mut self.dice, 1, 5);
            if i == 0 || i + 1 == count || i == count / 2 {
                let segment = sentences[0].clone();
                self.wanted(&segment);
            }
            let mut text = sentences.join(" ");
            if self.dice.one_in(3) {
                // A link inside the text, which belongs to it.
                text = text
                    .replacen("the ", "<a href=\"/topic\">the</a> ", 1)
                    .replace(" some ", " <em>some</em> ");
            }
            self.push(&format!("<p>{text}</p>\n"));
            match self.dice.below(12) {
                0 => {
                    let heading = title(&mut self.dice);
                    self.push(&format!("<h2>{heading}</h2>"));
                    let text = paragraph(&mut self.dice, 2, 3).join(" ");
                    self.push(&format!("<p>{text}</p>"));
                }
                1 => {
                    let quote = sentence(&mut self.dice);
                    self.wanted(&quote);
                    self.push(&format!("<blockquote><p>{quote}</p></blockquote>"));
                }
                2 => self.list(),
                3 => {
                    let class = self.dice.pick(&[
                        "ad-slot advertisement",
                        "related-inline related",
                        "promo-box promo",
                    ]);
                    let (head, text) = (title(&mut self.dice), sentence(&mut self.dice));
                    self.unwanted(&text);
                    self.push(&format!(
                        "<div class=\"{class}\"><a href=\"/x\">{head}</a><p>{text}</p></div>"
                    ));
                }
                4 => self.push("<figure><img src=a.jpg><figcaption>Photo: agency</figcaption></figure>"),
                _ => {}
            }
        }
    }

    fn list(&mut self) {
        self.push("<ul>");
        for i in 0..self.dice.between(2, 6) {
            let text = sentence(&mut self.dice);
            if i == 0 {
                self.wanted(&text);
            }
            self.push(&format!("<li>{text}</li>"));
        }
        self.push("</ul>\n");
    }

    /// A table with words in its cells, sometimes with a nested table.
    fn table(&mut self) {
        self.push("<table class=\"data\"><thead><tr><th>Name</th><th>Meaning</th></tr></thead><tbody>");
        for i in 0..self.dice.between(3, 8) {
            let (name, text) = (label(&mut self.dice), sentence(&mut self.dice));
            if i == 1 {
                self.wanted(&text);
            }
            let inner = if self.dice.one_in(8) { "<table><tr><td>a</td><td>b</td></tr></table>" } else { "" };
            self.push(&format!("<tr><td>{name}</td><td>{text}{inner}</td></tr>"));
        }
        self.push("</tbody></table>\n");
    }

    fn news(&mut self, name: &str) {
        self.site_header();
        if self.dice.one_in(3) {
            // A table-based layout.
            self.push("<table width=\"100%\"><tr><td width=160>");
            let count = self.dice.between(6, 14);
            self.menu("div", "left", count);
            self.push("</td><td>");
            self.push(&format!("<h1>{name}</h1>"));
            self.byline();
            self.body(4, 12);
            self.push("</td><td width=200>");
            self.teasers("More news", "right-col", 4);
            self.push("</td></tr></table>");
            return;
        }
        let class =
            self.dice.pick(&["article-body", "story-body", "articleBody", "c-text", "content__article-body"]);
        let (open, close) = if self.semantic {
            ("<main><article>", "</article>")
        } else {
            ("<div id=\"main\"><div class=\"article\">", "</div>")
        };
        self.push(&format!("{open}<h1>{name}</h1>"));
        self.byline();
        self.push(&format!("<div class=\"{class}\">"));
        self.body(4, 14);
        self.push(&format!("</div>{close}"));
        let heading = self.dice.pick(&["Related articles", "More on this story", "You may also like"]);
        self.teasers(heading, "related-articles", 4);
        if self.dice.one_in(2) {
            self.comments(4);
        }
        self.push(if self.semantic { "</main>" } else { "</div>" });
        self.sidebar();
    }

    fn blog(&mut self, name: &str) {
        self.site_header();
        let (open, close) = if self.semantic {
            ("<article class=\"post hentry\">", "</article>")
        } else {
            ("<div class=\"post hentry\">", "</div>")
        };
        let class = self.dice.pick(&["entry-content", "post-content", "post-body", "entry"]);
        self.push(&format!(
            "<div id=\"content\" class=\"site-content\">{open}<h1 class=\"entry-title\">{name}</h1>"
        ));
        self.byline();
        self.push(&format!("<div class=\"{class}\">"));
        self.body(3, 10);
        if self.dice.one_in(3) {
            self.table();
        }
        self.push("</div>");
        let tag = label(&mut self.dice);
        self.push(&format!("<div class=\"tags-links\">Tagged <a href=\"/t\">{tag}</a></div>{close}"));
        let (before, after) = (title(&mut self.dice), title(&mut self.dice));
        self.push(&format!(
            "<div class=\"nav-links\"><a href=\"/p\">{before}</a> <a href=\"/n\">{after}</a></div>"
        ));
        let count = self.dice.between(1, 8);
        self.comments(count);
        self.push("</div>");
        self.sidebar();
    }

    fn forum(&mut self, name: &str) {
        self.site_header();
        self.push(&format!("<div class=\"breadcrumbs\"><a href=\"/\">Home</a> &gt; <a href=\"/f\">Forum</a></div><div id=\"page-body\"><h2>{name}</h2>"));
        for i in 0..self.dice.between(2, 8) {
            let text = paragraph(&mut self.dice, 2, 6);
            if i < 4 {
                self.wanted(&text[0]);
            }
            let (name, joined) = (person(&mut self.dice), self.dice.between(2001, 2024));
            let signature = format!("My signature: {}", label(&mut self.dice));
            let text = text.join("<br><br>");
            self.push(&format!(
                "<div class=\"post-row\"><div class=\"profile\"><a href=\"/u\">{name}</a><br>Joined: {joined}</div>\
                 <div class=\"postbody\"><div class=\"text\">{text}</div><div class=\"signature\">{signature}</div></div></div>"
            ));
        }
        self.push("<div class=\"pagination\"><a href=\"?2\">2</a> <a href=\"?3\">3</a></div></div>");
        let text = format!("Users browsing this forum: {}", sentence(&mut self.dice));
        self.unwanted(&text);
        self.push(&format!("<div class=\"online-list footer\"><p>{text}</p></div>"));
    }

    fn docs(&mut self, name: &str) {
        self.site_header();
        let count = self.dice.between(10, 40);
        self.menu(if self.semantic { "nav" } else { "div" }, "sphinxsidebar toc-tree", count);
        let (open, close) = if self.semantic {
            ("<main role=\"main\">", "</main>")
        } else {
            ("<div class=\"document\"><div class=\"body\">", "</div></div>")
        };
        self.push(&format!("{open}<h1>{name}</h1>"));
        for _ in 0..self.dice.between(2, 5) {
            let (heading, text) = (title(&mut self.dice), paragraph(&mut self.dice, 2, 5));
            self.wanted(&text[0]);
            self.push(&format!(
                "<section><h2>{heading}<a class=headerlink href=\"#h\">¶</a></h2><p>{}</p>",
                text.join(" ")
            ));
            let number = self.dice.below(100);
            match self.dice.below(3) {
                0 => {
                    let code = format!("let value_{number} = compute(&amp;input, {number});");
                    self.push(&format!(
                        "<div class=\"highlight\"><pre><code>fn main() {{\n    {code}\n}}</code></pre></div>"
                    ));
                    self.wanted(&code.replace("&amp;", "&"));
                }
                1 => self.table(),
                _ => self.list(),
            }
            self.push("</section>");
        }
        self.push(close);
        let text = format!("Was this page helpful? {}", sentence(&mut self.dice));
        self.unwanted(&text);
        self.push(&format!("<div class=\"feedback\"><p>{text}</p></div>"));
    }

    fn shop(&mut self, name: &str) {
        self.site_header();
        let price = self.dice.between(5, 500);
        self.push(&format!("<div id=\"main\" class=\"product\"><h1>{name}</h1><span class=\"price\">{price} EUR</span><button>Add to cart</button>"));
        self.push("<div class=\"product-description\"><h2>Description</h2>");
        self.body(1, 4);
        self.push("</div><div class=\"specs\"><h2>Details</h2>");
        self.table();
        self.push("</div></div>");
        let heading = self.dice.pick(&["Customers also bought", "Similar products"]);
        self.teasers(heading, "recommendations", 5);
        let text = format!("Delivery: {} {}", sentence(&mut self.dice), sentence(&mut self.dice));
        self.unwanted(&text);
        self.push(&format!("<div class=\"modal shipping\" style=\"display: none\"><p>{text}</p></div>"));
    }
}
