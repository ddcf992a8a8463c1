//! Parts of a page outside its content.

use super::page::Page;
use super::words::{label, paragraph, person, sentence, title};

impl Page {
    /// A menu of links.
    pub(super) fn menu(&mut self, tag: &str, class: &str, count: usize) {
        let items: String = (0..count)
            .map(|_| format!("<li><a href=\"/s{}\">{}</a></li>", self.dice.below(999), label(&mut self.dice)))
            .collect();
        self.push(&format!("<{tag} class=\"{class}\"><ul>{items}</ul></{tag}>\n"));
    }

    /// Header of the site: name, menu, search.
    pub(super) fn site_header(&mut self) {
        let name = label(&mut self.dice);
        let (open, close) = if self.semantic {
            ("<header>", "</header>")
        } else {
            ("<div id=\"header\" class=\"site-header\">", "</div>")
        };
        self.push(&format!("{open}<a href=\"/\" class=\"logo\">{name} Daily</a>"));
        let (tag, class) = if self.semantic { ("nav", "main") } else { ("div", "navigation") };
        let count = self.dice.between(5, 14);
        self.menu(tag, class, count);
        self.push("<form class=\"search-form\"><input name=q><button>Search</button></form>");
        self.push(close);
    }

    /// A cookie notice.
    pub(super) fn cookie_note(&mut self) {
        let text = format!("We use cookies so that {}", sentence(&mut self.dice).to_lowercase());
        self.unwanted(&text);
        let class = self.dice.pick(&["cookie-banner", "gdpr-consent", "cc-window cookie-notice"]);
        self.push(&format!("<div class=\"{class}\"><p>{text}</p><button>Accept all</button></div>"));
    }

    /// Teasers for other articles, with linked titles.
    pub(super) fn teasers(&mut self, heading: &str, class: &str, count: usize) {
        self.push(&format!("<div class=\"{class}\"><h3>{heading}</h3>"));
        for i in 0..count {
            let (head, text) = (title(&mut self.dice), sentence(&mut self.dice));
            if i == 0 {
                self.unwanted(&text);
            }
            let id = self.dice.below(9999);
            self.push(&format!("<div class=\"item\"><h4><a href=\"/a/{id}\">{head}</a></h4><p>{text} <a href=\"/a/{id}\">Read more</a></p></div>"));
        }
        self.push("</div>\n");
    }

    /// A sidebar: popular articles, a newsletter, advertising.
    pub(super) fn sidebar(&mut self) {
        let (open, close) = if self.semantic {
            ("<aside>", "</aside>")
        } else {
            ("<div id=\"sidebar\" class=\"widget-area\">", "</div>")
        };
        self.push(open);
        let count = self.dice.between(3, 8);
        self.menu("div", "widget popular-posts", count);
        let text = format!("Sign up for our newsletter: {}", sentence(&mut self.dice));
        self.unwanted(&text);
        self.push(&format!("<div class=\"widget newsletter\"><h3>Newsletter</h3><p>{text}</p><input type=email><button>Go</button></div>"));
        if self.dice.one_in(2) {
            let heading = self.dice.pick(&["Most read", "Popular", "Latest news"]);
            self.teasers(heading, "widget latest", 3);
        }
        self.push(close);
    }

    /// Readers' comments below an article.
    pub(super) fn comments(&mut self, count: usize) {
        let class = self.dice.pick(&["comments-area", "comments", "comment-list", "post-comments"]);
        self.push(&format!("<div id=\"comments\" class=\"{class}\"><h3>{count} comments</h3><ol>"));
        for i in 0..count {
            let text = paragraph(&mut self.dice, 1, 2).join(" ");
            if i == 0 {
                self.unwanted(&text);
            }
            let name = person(&mut self.dice);
            self.push(&format!("<li class=\"comment\"><div class=\"comment-author\">{name} says:</div><div class=\"comment-body\"><p>{text}</p></div><a href=\"#r\">Reply</a></li>"));
        }
        self.push("</ol><p>Your email address will not be published. Required fields are marked *</p><form><textarea></textarea></form></div>\n");
    }

    /// Author, date and share buttons.
    pub(super) fn byline(&mut self) {
        let name = person(&mut self.dice);
        let (day, year) = (self.dice.between(1, 28), self.dice.between(2005, 2026));
        let class = self.dice.pick(&["byline", "post-meta", "entry-meta", "article__meta"]);
        self.push(&format!(
            "<div class=\"{class}\">By <a href=\"/by\">{name}</a> on <time>{day} March {year}</time></div>"
        ));
        if self.dice.one_in(2) {
            let class = self.dice.pick(&["share-buttons", "social-share", "sharedaddy"]);
            self.push(&format!("<ul class=\"{class}\"><li><a href=\"#f\">Facebook</a></li><li><a href=\"#t\">Twitter</a></li><li><a href=\"#m\">E-mail</a></li></ul>"));
        }
    }

    pub(super) fn site_footer(&mut self) {
        let text = format!(
            "Copyright 2026. {} No part of this site may be used without permission.",
            sentence(&mut self.dice)
        );
        self.unwanted(&text);
        let (open, close) =
            if self.semantic { ("<footer>", "</footer>") } else { ("<div id=\"footer\">", "</div>") };
        self.push(open);
        let count = self.dice.between(4, 12);
        self.menu("div", "footer-links", count);
        self.push(&format!("<p>{text}</p>{close}"));
    }

    /// Scripts and styles, which make up much of real pages.
    pub(super) fn ballast(&mut self, kilobytes: usize) {
        self.push("<script>window.data={");
        for _ in 0..kilobytes * 16 {
            let number = self.dice.next();
            self.push(&format!("\"k{number:x}\":\"<p>{number:x}{number:x}</p>\","));
        }
        self.push("};</script>\n<style>.a{color:red}</style>");
    }
}
