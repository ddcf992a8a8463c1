//! `secrets`: keys, tokens and passwords by the formats that their providers document, private keys in PEM, and values
//! assigned to names such as `api_key` or `DB_PASSWORD`.

use std::ops::Range;
use std::sync::OnceLock;

use regex_automata::meta;
use regex_syntax::hir::Hir;
use serde::Deserialize;

use super::partial::PartialMatches;
use crate::config::Setting;
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::registry::{OptionError, RailKind};
use crate::verdict::{Direction, Finding, Reason};

/// Bytes of the longest secret other than a private key.
const LONGEST: usize = 4096;
/// Bytes before a value in which its name is looked for.
const BEFORE: usize = 96;
/// Beginning of a private key in PEM, before its label.
const PEM_BEGIN: &str = "-----BEGIN ";
/// Bytes of the longest label of a private key.
const MAX_LABEL: usize = 60;
/// Kind of values that are recognised by their names.
const ASSIGNED: &str = "assigned_value";
/// Kind of values behind the word `Bearer`.
const BEARER: &str = "bearer_token";

/// Formats by provider. `\b` is of ASCII, so that one automaton reads all.
const FORMATS: &[(&str, &str)] = &[
    ("adobe", r"p8e-[a-z0-9]{32}"),
    ("age", r"AGE-SECRET-KEY-1[02-9AC-HJ-NP-Z]{58}"),
    ("alibaba", r"LTAI[A-Za-z0-9]{20}"),
    ("anthropic", r"sk-ant-[a-z]{3,6}[0-9]{2}-[A-Za-z0-9_-]{60,140}"),
    ("artifactory", r"AKC[0-9A-Za-z]{60,80}"),
    ("atlassian", r"ATATT3[A-Za-z0-9_=-]{180,200}"),
    ("aws_access_key", r"(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AIPA|ANPA|ANVA|AROA)[A-Z0-9]{16}"),
    ("azure_client_secret", r"[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}"),
    ("azure_storage", r"AccountKey=[A-Za-z0-9+/]{86}=="),
    ("clojars", r"CLOJARS_[A-Za-z0-9]{60}"),
    ("crates_io", r"cio[A-Za-z0-9]{32}"),
    ("databricks", r"dapi[a-f0-9]{32}(?:-[0-9])?"),
    ("digitalocean", r"do[opr]_v1_[a-f0-9]{64}"),
    ("discord_bot", r"[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,38}"),
    ("discord_webhook", r"discord(?:app)?\.com/api/webhooks/[0-9]{17,20}/[A-Za-z0-9_-]{60,68}"),
    ("docker", r"dckr_[op]at_[A-Za-z0-9_-]{27,32}"),
    ("doppler", r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9]{40,44}"),
    ("dropbox", r"sl\.[A-Za-z0-9_-]{130,152}"),
    ("duffel", r"duffel_(?:test|live)_[A-Za-z0-9_=-]{43}"),
    ("dynatrace", r"dt0[a-z][0-9]{2}\.[A-Z0-9]{24}\.[A-Z0-9]{64}"),
    ("easypost", r"EZ[AT]K[A-Za-z0-9]{54}"),
    ("facebook", r"EAA[MC][A-Za-z0-9]{100,200}"),
    ("flutterwave", r"FLW(?:PUB|SEC)K(?:_TEST)?-[a-h0-9]{12,32}(?:-X)?"),
    ("frame_io", r"fio-u-[A-Za-z0-9_=-]{64}"),
    ("github", r"gh[pousr]_[A-Za-z0-9]{36,251}"),
    ("github_fine_grained", r"github_pat_[A-Za-z0-9_]{82}"),
    ("gitlab", r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent|oas)-[A-Za-z0-9_-]{20,64}"),
    ("google_api", r"AIza[A-Za-z0-9_-]{35}"),
    ("google_client_secret", r"GOCSPX-[A-Za-z0-9_-]{28}"),
    ("google_oauth", r"ya29\.[A-Za-z0-9_-]{20,300}"),
    ("grafana", r"gl(?:c_[A-Za-z0-9+/]{32,400}={0,2}|sa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8})"),
    ("groq", r"gsk_[A-Za-z0-9]{52}"),
    ("heroku", r"HRKU-AA[A-Za-z0-9_-]{58}"),
    ("hugging_face", r"hf_[A-Za-z0-9]{34,40}"),
    ("hugging_face_organization", r"api_org_[A-Za-z0-9]{34}"),
    ("jwt", r"ey[A-Za-z0-9_-]{15,1000}\.ey[A-Za-z0-9_-]{10,2000}\.[A-Za-z0-9_-]{10,600}"),
    ("linear", r"lin_(?:api|oauth)_[A-Za-z0-9]{32,64}"),
    ("mailchimp", r"[0-9a-f]{32}-us[0-9]{1,2}"),
    ("mailgun", r"key-[0-9a-f]{32}"),
    ("netlify", r"nfp_[A-Za-z0-9]{36}"),
    ("new_relic", r"NR(?:AK|JS|II|AL|RA)-[A-Za-z0-9-]{27,40}"),
    ("notion", r"(?:secret_[A-Za-z0-9]{43}|ntn_[0-9]{11}[A-Za-z0-9]{35})"),
    ("npm", r"npm_[A-Za-z0-9]{36}"),
    ("nvidia", r"nvapi-[A-Za-z0-9_-]{60,70}"),
    ("openai", r"sk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,200}"),
    ("openrouter", r"sk-or-v1-[a-f0-9]{64}"),
    ("perplexity", r"pplx-[A-Za-z0-9]{48}"),
    ("planetscale", r"pscale_(?:tkn|oauth|pw)_[A-Za-z0-9_=.-]{32,64}"),
    ("postman", r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}"),
    ("prefect", r"pnu_[A-Za-z0-9]{36}"),
    ("pulumi", r"pul-[a-f0-9]{40}"),
    ("pypi", r"pypi-AgE[A-Za-z0-9_-]{50,1000}"),
    ("readme", r"rdme_[a-z0-9]{70}"),
    ("replicate", r"r8_[A-Za-z0-9]{37}"),
    ("rubygems", r"rubygems_[a-f0-9]{48}"),
    ("sendgrid", r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}"),
    ("sendinblue", r"xkeysib-[a-f0-9]{64}-[A-Za-z0-9]{16}"),
    ("sentry", r"sntry[su]_[A-Za-z0-9+/=_-]{40,400}"),
    ("shippo", r"shippo_(?:live|test)_[a-f0-9]{40}"),
    ("shopify", r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}"),
    ("slack", r"xox[abceoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,250}"),
    ("slack_app", r"xapp-[0-9]-[A-Z0-9]{5,20}-[0-9]{5,20}-[a-z0-9]{20,80}"),
    ("slack_webhook", r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/]{40,60}"),
    ("square", r"(?:sq0(?:atp|csp|idp)-[A-Za-z0-9_-]{22,43}|EAAA[A-Za-z0-9_-]{60})"),
    ("stripe", r"(?:[rs]k_(?:test|live|prod)_[A-Za-z0-9]{10,99}|whsec_[A-Za-z0-9+/=]{32,64})"),
    ("supabase", r"sb(?:p_[a-f0-9]{40}|_secret_[A-Za-z0-9_-]{31})"),
    ("telegram", r"[0-9]{8,10}:AA[A-Za-z0-9_-]{33}"),
    ("terraform", r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}"),
    ("twilio", r"(?:SK|AC)[0-9a-f]{32}"),
    ("twitter", r"A{22}[A-Za-z0-9%]{80,100}"),
    ("typeform", r"tfp_[A-Za-z0-9_.=-]{59}"),
    ("url_password", r"[a-z][a-z0-9+.-]{1,20}://[^\s:/@'\x22<>]{1,64}:[^\s:/@'\x22<>]{3,128}@"),
    ("vault", r"hv[bsr]\.[A-Za-z0-9_-]{24,300}"),
    ("xai", r"xai-[A-Za-z0-9]{60,90}"),
    ("yandex", r"(?:AQVN[A-Za-z0-9_-]{35,38}|YC[A-Za-z0-9_-]{38})"),
    (BEARER, r"(?i-u:bearer)[ \t]{1,3}[A-Za-z0-9._~+/-]{16,2000}={0,2}"),
    (
        ASSIGNED,
        r#"(?i-u:api[_-]?key|api[_-]?token|secret[_-]?key|client[_-]?secret|access[_-]?key|access[_-]?token|auth[_-]?token|private[_-]?token|password|passwd|pwd|secret|token)[A-Za-z0-9_-]{0,24}["']?[ \t]{0,3}(?:=>|:=|=|:)[ \t]{0,3}["']?[A-Za-z0-9+/_.~!@#$%^&*=-]{10,200}"#,
    ),
];

/// Options.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Kinds that are not looked for.
    #[serde(default)]
    #[serde(deserialize_with = "crate::registry::list")]
    except: Vec<String>,
}

/// The rail.
pub struct Secrets {
    except: Vec<String>,
}

/// Formats behind word boundaries. Names of values have none, since they may be ends of others (`DB_PASSWORD`).
fn bounded() -> Vec<String> {
    let bounded = |(kind, format): &(&str, &str)| match *kind {
        ASSIGNED => format.to_string(),
        _ => format!(r"(?-u:\b){format}"),
    };
    FORMATS.iter().map(bounded).collect()
}

fn formats() -> &'static meta::Regex {
    static BUILT: OnceLock<meta::Regex> = OnceLock::new();
    BUILT.get_or_init(|| {
        let bounded = bounded();
        let config = meta::Config::new().hybrid_cache_capacity(8 << 20).nfa_size_limit(Some(64 << 20));
        match meta::Builder::new().configure(config).build_many(&bounded) {
            Ok(regex) => regex,
            Err(error) => panic!("formats of secrets: {error}"),
        }
    })
}

/// Beginnings of secrets, and of private keys until the end of their label.
fn partial() -> &'static PartialMatches {
    static BUILT: OnceLock<PartialMatches> = OnceLock::new();
    BUILT.get_or_init(|| {
        let key = format!("{PEM_BEGIN}(?s:.){{0,{}}}", MAX_LABEL + 5);
        let parsed: Vec<Hir> = bounded()
            .iter()
            .chain([&key])
            .map(|format| match regex_syntax::parse(format) {
                Ok(hir) => hir,
                Err(error) => panic!("formats of secrets: {error}"),
            })
            .collect();
        PartialMatches::new(parsed, LONGEST)
    })
}

impl RailKind for Secrets {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "secrets",
        summary: "keys, tokens, passwords and private keys",
        directions: &Direction::ALL,
        actions: &[Action::Mask, Action::Block, Action::Omit, Action::Flag],
        cost: Cost::Text,
    };

    fn build(options: Options, _: &Setting, _: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        let known: Vec<&str> = FORMATS.iter().map(|(kind, _)| *kind).chain(["private_key"]).collect();
        if let Some(other) = options.except.iter().find(|it| !known.contains(&it.as_str())) {
            let hint = fathom_base::recipe::suggest_name(other, &known, "there are");
            return Err(OptionError::new("except", format!("no kind is called `{other}`; {hint}")));
        }
        Ok(Box::new(Secrets { except: options.except }))
    }
}

/// Private keys in PEM; one without its end reaches to the text's end.
fn private_keys(text: &str, from: usize) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = from;
    while let Some(begin) = text[at..].find(PEM_BEGIN).map(|place| place + at) {
        let label = &text[begin + PEM_BEGIN.len()..];
        let label = label.split("-----").next().unwrap_or_default();
        at = begin + PEM_BEGIN.len();
        if label.len() > MAX_LABEL || !label.contains("PRIVATE KEY") {
            continue;
        }
        let end = format!("-----END {label}-----");
        let end = text[at..].find(&end).map_or(text.len(), |place| at + place + end.len());
        found.push(begin..end);
        at = end;
    }
    found
}

/// Bits per byte of a value.
fn entropy(value: &[u8]) -> f64 {
    let mut counts = [0u32; 256];
    value.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let all = value.len() as f64;
    let of = |count: u32| {
        let p = f64::from(count) / all;
        -p * p.log2()
    };
    counts.into_iter().filter(|count| *count > 0).map(of).sum()
}

/// Place of the mark between a name and its value.
fn separator(matched: &str, kind: &str) -> Option<usize> {
    if kind == BEARER { matched.find([' ', '\t']) } else { matched.find(['=', ':']) }
}

/// The value behind a name, if it looks like a secret: of letters and digits without an evident order.
fn named(text: &str, span: Range<usize>, kind: &str) -> Option<Range<usize>> {
    let matched = &text[span.clone()];
    let is_value = |c: char| !(c.is_whitespace() || "\"'=:>".contains(c));
    let separator = separator(matched, kind)?;
    let begin = separator + matched[separator..].find(is_value)?;
    let value = &matched[begin..];
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    let letters = value.bytes().filter(u8::is_ascii_alphabetic).count();
    let marks = value.len() - digits - letters;
    let words = value.contains("example") || value.starts_with("your") || value.contains("...");
    let mixed = digits >= 2 && letters >= 2 && marks * 2 <= value.len();
    (mixed && !words && entropy(value.as_bytes()) >= 3.0).then(|| span.start + begin..span.end)
}

/// The format that a named value has of its own, with where it ends: one that reaches at least as far.
fn own_format(text: &str, value: &Range<usize>) -> Option<Finding> {
    let input = regex_automata::Input::new(text).span(value.start..text.len());
    let found = formats().search(&input.anchored(regex_automata::Anchored::Yes))?;
    let kind = FORMATS[found.pattern().as_usize()].0;
    (!is_named(kind) && found.end() >= value.end).then(|| Finding::new(found.range(), kind))
}

/// Returns whether values of a kind are found by names before them.
fn is_named(kind: &str) -> bool {
    [ASSIGNED, BEARER].contains(&kind)
}

impl Rail for Secrets {
    fn judge(&self, judged: &RailInput<'_>, _: &Until) -> Result<Opinion, Failure> {
        let (text, from) = (judged.text, judged.from);
        let keeps = |kind: &str| !self.except.iter().any(|it| it == kind);
        let mut findings: Vec<Finding> = Vec::new();
        if keeps("private_key") {
            findings
                .extend(private_keys(text, from).into_iter().map(|span| Finding::new(span, "private_key")));
        }
        let mut input = regex_automata::Input::new(text).span(from..text.len());
        let regex = formats();
        while let Some(found) = regex.search(&input) {
            input.set_start(found.end());
            let kind = FORMATS[found.pattern().as_usize()].0;
            let mut span = found.range();
            if is_named(kind) {
                match named(text, span.clone(), kind) {
                    Some(value) => match own_format(text, &value).filter(|own| keeps(&own.kind)) {
                        Some(own) => {
                            input.set_start(own.span.end);
                            findings.push(own);
                            continue;
                        }
                        None => span = value,
                    },
                    // The name alone is passed over, since its value may have a format of its own.
                    None => {
                        let name = separator(&text[span.clone()], kind).unwrap_or(0);
                        input.set_start(span.start + name.max(1));
                        continue;
                    }
                }
            }
            if keeps(kind) {
                findings.push(Finding::new(span, kind));
            } else {
                input.set_start(text.ceil_char_boundary(found.start() + 1));
            }
        }
        Ok(Opinion::of(Reason::Secret, crate::spans::united(findings)))
    }

    fn horizon(&self) -> Horizon {
        Horizon::Bytes(LONGEST)
    }

    fn mark(&self, judged: &RailInput<'_>, opinion: &Opinion) -> usize {
        let text = judged.text;
        let mut mark = partial().first(text, judged.from);
        // A value is found by the name before it, which has to stay in view until the value is released.
        for finding in opinion.findings.iter().rev().filter(|finding| is_named(&finding.kind)) {
            if (finding.span.start.saturating_sub(BEFORE)..=finding.span.end).contains(&mark) {
                mark = finding.span.start.saturating_sub(BEFORE);
            }
        }
        text.floor_char_boundary(mark)
    }
}
