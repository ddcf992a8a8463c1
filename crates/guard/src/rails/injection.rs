//! `injection`: code that runs commands or opens connections, SQL, templates, and scripts of pages. The rules look for
//! statements rather than words, so that prose about programs passes.

use std::sync::OnceLock;

use serde::Deserialize;

use super::patterns::PatternSet;
use crate::config::Setting;
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::registry::{OptionError, RailKind};
use crate::verdict::{Direction, Reason};

/// A family of injections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Programs: imports of modules that reach the system or the network, and commands of shells.
    Code,
    /// SQL.
    Sqli,
    /// Expressions of template engines.
    Template,
    /// Scripts in pages.
    Xss,
}

/// Modules of Python that reach the system or the network.
const MODULES: &str = "os|cmd|sys|subprocess|shutil|socket|asyncio|https?|bs4|requests|mechanize|urllib[0-9]?|asyncssh|ctypes|pty|pickle|paramiko|ftplib|telnetlib|smtplib|httpx|aiohttp|importlib|builtins|multiprocessing|signal|tempfile|webbrowser";

/// Rules by kind; `MODULES` stands for the modules.
const RULES: &[(Family, &str, &str)] = &[
    (
        Family::Code,
        "python_import",
        r#"(?m:^|[;:`>{("'|]|\\n)[ \t]{0,8}import[ \t]{1,4}(?:[A-Za-z_][A-Za-z0-9_.]{0,30}(?:[ \t]{1,4}as[ \t]{1,4}[A-Za-z_0-9]{1,20})?[ \t]{0,4},[ \t]{0,4}){0,4}(?:MODULES)(?:\.[A-Za-z_.]{1,40})?(?:[ \t]{0,4}$|[ \t]{0,4}[;,#`"'\\)\n\r]|[ \t]{1,4}as[ \t])"#,
    ),
    (
        Family::Code,
        "python_import",
        r"\bfrom[ \t]{1,4}(?:MODULES)(?:\.[A-Za-z_.]{1,40})?[ \t]{1,4}import[ \t]{1,4}[A-Za-z_*(]",
    ),
    (
        Family::Code,
        "python_import",
        r#"(?:__import__|import_module)[ \t]{0,4}\([ \t]{0,4}["'][A-Za-z_.]{1,40}["']"#,
    ),
    (
        Family::Code,
        "python_call",
        r#"\b(?:os[ \t]{0,2}\.[ \t]{0,2}(?:system|popen|exec[lv]p?e?|spawn[lv]p?e?|remove|unlink|rmdir)|subprocess[ \t]{0,2}\.[ \t]{0,2}(?:run|Popen|call|check_call|check_output|getoutput|getstatusoutput)|shutil[ \t]{0,2}\.[ \t]{0,2}rmtree|pty\.spawn|socket\.socket|requests\.(?:get|post|put)|urllib\.request\.[a-z]{3,20}|pickle\.loads?)[ \t]{0,2}\("#,
    ),
    (
        Family::Code,
        "python_call",
        r#"\b(?:eval|exec|compile)[ \t]{0,2}\([ \t]{0,2}(?:["'(]|input\(|open\(|base64|bytes|compile|__import__|request|chr\()"#,
    ),
    (
        Family::Code,
        "shell",
        r"\brm[ \t]{1,4}-(?:[a-zA-Z]{0,4}[rR][a-zA-Z]{0,4}f|[a-zA-Z]{0,4}f[a-zA-Z]{0,4}[rR])[a-zA-Z]{0,4}[ \t]{1,4}[/~*.$]",
    ),
    (
        Family::Code,
        "shell",
        r"\b(?:curl|wget)\b[^\n|]{1,80}\|[ \t]{0,4}(?:sudo[ \t]{1,4})?(?:ba|z|da|k)?sh\b",
    ),
    (
        Family::Code,
        "shell",
        r"(?:/dev/(?:tcp|udp)/[0-9A-Za-z]|\bnc(?:at)?[ \t]{1,4}[^\n]{0,60}-[a-z]{0,4}e[ \t]|\bmkfifo[ \t]{1,4}/tmp|/etc/(?:passwd|shadow)\b)",
    ),
    (
        Family::Code,
        "shell",
        r"(?i:\b(?:powershell|pwsh)(?:\.exe)?[ \t][^\n]{0,80}-e(?:nc|ncodedcommand|c)?[ \t]|\bInvoke-Expression\b|\bIEX[ \t]{0,4}\(|DownloadString[ \t]{0,4}\()",
    ),
    (
        Family::Code,
        "shell",
        r"(?:;|&&|\|\||\||`|\$\()[ \t]{0,4}(?:cat|ls|id|whoami|uname|wget|curl|nc|bash|sh|chmod|chown|kill|ping|sleep|touch|env)[ \t]{1,4}[-/~.$][^\n]{1,60}",
    ),
    (
        Family::Sqli,
        "sql_union",
        r"(?i:\bunion(?:[ \t\n]|/\*[^*\n]{0,20}\*/){1,6}(?:all[ \t\n]{1,4}|distinct[ \t\n]{1,4})?select\b)",
    ),
    (
        Family::Sqli,
        "sql_tautology",
        r#"(?i:["'`][ \t)]{0,6}(?:or|and|xor|\|\||&&)[ \t(]{1,6}(?:not[ \t]{1,4})?["'(]{0,3}[A-Za-z0-9_]{1,20}["')]{0,3}[ \t]{0,4}(?:=|<>|!=|<|>)[ \t(]{0,4}["']?[A-Za-z0-9_%])"#,
    ),
    (
        Family::Sqli,
        "sql_tautology",
        r#"(?i:["'][ \t)]{0,6}(?:or|and)[ \t(]{1,6}["']?[A-Za-z0-9_]{1,20}["']?[ \t]{1,4}(?:not[ \t]{1,4})?(?:like|is|between|in)[ \t(]{1,4}(?:["'0-9]|(?:not[ \t]{1,4})?null\b|select\b))"#,
    ),
    (
        Family::Sqli,
        "sql_tautology",
        r"(?i:\b(?:or|and)[ \t(]{1,6}[0-9]{1,4}[ \t]{0,4}=[ \t]{0,4}[0-9]{1,4}\b)",
    ),
    (
        Family::Sqli,
        "sql_stacked",
        r#"(?i:;[ \t\n]{0,6}(?:drop|delete|insert|update|alter|create|truncate|exec(?:ute)?|shutdown|grant|declare|select|upsert|merge)[ \t\n]{1,6}(?:table|from|into|database|schema|user|view|index|procedure|function|role|login|master|sp_|xp_|@|\*|all|[A-Za-z_"`\[.]{1,40}[ \t\n]{1,4}(?:set|add|drop|from|modify|to|values|as)\b|if[ \t]{1,4}exists))"#,
    ),
    (
        Family::Sqli,
        "sql_statement",
        r#"(?i:\b(?:select[ \t\n][^;\n]{1,70}?\bfrom[ \t\n]{1,4}[A-Za-z_"`\[]|insert[ \t\n]{1,4}into[ \t\n]{1,4}[A-Za-z_"`\[]|update[ \t\n]{1,4}[A-Za-z_"`\[][^;\s]{0,40}[ \t\n]{1,4}set[ \t\n]|delete[ \t\n]{1,4}from[ \t\n]{1,4}[A-Za-z_"`\[]|(?:drop|alter|create|truncate)[ \t\n]{1,4}(?:table|database|schema|user|view|index|procedure|function|trigger|role)[ \t\n]{1,4}[A-Za-z_"`\[])[^\n]{0,50}?(?:--|/\*|;[ \t]{0,4}[A-Za-z]|'[^'\n]{0,20}'|;[ \t]{0,4}$|=[ \t]{0,2}[0-9]))"#,
    ),
    (
        Family::Sqli,
        "sql_catalog",
        r"(?i:\b(?:select|from|join)[ \t\n]{1,4}(?:pg_[a-z]{2,30}|information_schema\b|sqlite_master\b|sys\.[a-z]|mysql\.user\b|all_tables\b))",
    ),
    (
        Family::Sqli,
        "sql_function",
        r"(?i:\b(?:waitfor[ \t]{1,4}delay|xp_cmdshell|load_file[ \t]{0,2}\(|into[ \t]{1,4}(?:out|dump)file|benchmark[ \t]{0,2}\([0-9]|pg_sleep[ \t]{0,2}\(|extractvalue[ \t]{0,2}\(|updatexml[ \t]{0,2}\(|utl_http|dbms_[a-z]{2,20}\.))",
    ),
    (
        Family::Sqli,
        "sql_function",
        r"(?i:(?:\bcha?r[ \t]{0,2}\([0-9]{1,3}\)[ \t]{0,2}(?:\+|,|\|\|)?[ \t]{0,2}){2,6})",
    ),
    (
        Family::Sqli,
        "sql_comment",
        r#"(?i:['"][ \t]{0,4}(?:;[ \t]{0,4})?(?:--[ \t]?(?:$|[-+'"\n])|#[ \t]{0,2}$|/\*))"#,
    ),
    (Family::Template, "template", r"\{\{[^{}\n][^\n]{0,80}?\}\}"),
    (Family::Template, "template", r"\{%-?[^\n]{1,80}?%\}"),
    (Family::Template, "template", r"<%[=@!#-]?[^%\n]{1,80}?%>"),
    (
        Family::Template,
        "template",
        r#"[$#]\{[^{}\n]{0,40}(?:\(|\.[a-z]{2,20}\.|\*|::|getClass|env|jndi)[^{}\n]{0,40}\}"#,
    ),
    (Family::Xss, "script", r"(?i:<[ \t\n]{0,4}/?[ \t]{0,2}script\b[^>\n]{0,60}>?)"),
    (Family::Xss, "script", r#"(?i:\b(?:java|vb|live)[ \t\n]{0,2}script[ \t\n]{0,2}:[ \t]{0,2}[^\s)"'>])"#),
    (
        Family::Xss,
        "handler",
        r#"(?i:<[a-z][a-z0-9]{0,15}\b[^<>\n]{0,80}?[ \t\n/"']on[a-z]{3,20}[ \t]{0,2}=[ \t]{0,2}["'a-z])"#,
    ),
    (
        Family::Xss,
        "element",
        r"(?i:<[ \t]{0,2}(?:iframe|object|embed|applet|meta|base|form|link|frameset)\b[^>\n]{0,80}[ \t](?:src|data|href|content|action|srcdoc)[ \t]{0,2}=)",
    ),
    (
        Family::Xss,
        "element",
        r#"(?i:(?:href|src|action)[ \t]{0,2}=[ \t]{0,2}["']?[ \t]{0,2}data:(?:text/html|image/svg|application)|\bdata:text/html[;,])"#,
    ),
    (Family::Xss, "markdown_link", r"(?i:\]\([ \t]{0,2}(?:javascript|vbscript|data)[ \t]{0,2}:)"),
    // An image whose address carries data to another host when it is shown.
    (
        Family::Xss,
        "markdown_image",
        r"(?i:!\[[^\]\n]{0,40}\]\([ \t]{0,2}(?:https?:)?//[^)\s?]{1,60}\?[^)\s]{1,40})",
    ),
];

/// Options.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Families that are looked for; all by default.
    #[serde(default = "families")]
    #[serde(deserialize_with = "crate::registry::list")]
    families: Vec<Family>,
}

fn families() -> Vec<Family> {
    vec![Family::Code, Family::Sqli, Family::Template, Family::Xss]
}

/// The rail.
pub struct Injection {
    families: Vec<Family>,
}

/// A rule with its modules, and with word boundaries of ASCII, which keep the automaton fast.
fn expanded(rule: &str) -> String {
    rule.replace("MODULES", MODULES).replace(r"\b", r"(?-u:\b)")
}

fn rules() -> &'static PatternSet {
    static BUILT: OnceLock<PatternSet> = OnceLock::new();
    BUILT.get_or_init(|| {
        let rules: Vec<(&str, String)> =
            RULES.iter().map(|(_, kind, rule)| (*kind, expanded(rule))).collect();
        let rules: Vec<(&'static str, &str)> =
            rules.iter().map(|(kind, rule)| (*kind, rule.as_str())).collect();
        PatternSet::new(&rules)
    })
}

impl RailKind for Injection {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "injection",
        summary: "programs, SQL, templates and scripts of pages where text is expected",
        directions: &Direction::ALL,
        actions: &[Action::Block, Action::Omit, Action::Mask, Action::Flag],
        cost: Cost::Text,
    };

    fn build(options: Options, _: &Setting, _: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        if options.families.is_empty() {
            return Err(OptionError::new("families", "is empty; name at least one"));
        }
        Ok(Box::new(Injection { families: options.families }))
    }
}

impl Rail for Injection {
    fn judge(&self, judged: &RailInput<'_>, _: &Until) -> Result<Opinion, Failure> {
        let family =
            |kind: &str| RULES.iter().find(|(_, other, _)| *other == kind).map(|(family, ..)| *family);
        let wanted = |kind: &str| family(kind).is_some_and(|it| self.families.contains(&it));
        Ok(Opinion::of(Reason::Injection, rules().find(judged.text, judged.from, wanted)))
    }

    fn horizon(&self) -> Horizon {
        Horizon::Bytes(rules().horizon())
    }

    fn mark(&self, judged: &RailInput<'_>, _: &Opinion) -> usize {
        rules().first_open(judged.text, judged.from)
    }
}
