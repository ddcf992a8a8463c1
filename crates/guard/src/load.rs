//! Reads `guard.toml` into a [`Config`], with the place of every error.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_base::recipe::suggest_name;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::{
    Config, ConfigError, ConfiguredRail, FILE, FileError, GuardSettings, Hold, OnFailure, Setting, ToolRule,
};
use crate::needs::Needs;
use crate::rail::{Action, Cost, Horizon, Manifest};
use crate::registry::{self, BuildError, List, OptionTable, fields};
use crate::verdict::Direction;

/// Rules of tools by name.
type Rules = Arc<BTreeMap<String, ToolRule>>;

impl Config {
    /// Loads `guard.toml` of a folder, or this file.
    ///
    /// # Errors
    /// The file cannot be read, is malformed, contradicts itself, or a rail lacks what it needs.
    pub fn load(folder: &Path, needs: &Needs) -> Result<Config, ConfigError> {
        let (file, text) = text_of(folder)?;
        Config::parse(&text, &file, needs)
    }

    /// Reads the table `[guard]` of a folder's `guard.toml` alone, without its rails.
    ///
    /// # Errors
    /// The file cannot be read or is malformed.
    pub fn read_settings(folder: &Path) -> Result<GuardSettings, ConfigError> {
        let (file, text) = text_of(folder)?;
        settings((&text, &file))
    }

    /// Reads the text of a configuration; `file` is named in errors, and its folder is that of relative paths.
    ///
    /// # Errors
    /// Those of [`Config::load`].
    pub fn parse(text: &str, file: &Path, needs: &Needs) -> Result<Config, ConfigError> {
        let folder = file.parent().unwrap_or(Path::new("")).to_path_buf();
        let needs = Needs { folder: folder.clone(), ..needs.clone() };
        let id = folder.file_name().map_or("default".into(), |name| name.to_string_lossy().into_owned());
        read((text, file), &needs, id, folder)
    }
}

/// The file of a folder, or this file, with its text.
fn text_of(folder: &Path) -> Result<(PathBuf, String), ConfigError> {
    let file = if folder.is_dir() { folder.join(FILE) } else { folder.to_path_buf() };
    let text =
        std::fs::read_to_string(&file).map_err(|error| fathom_base::Error::io("read", &file, error))?;
    Ok((file, text))
}

/// Reads a text, whose file is named in errors.
///
/// # Errors
/// Those of [`Config::load`].
fn read(
    (text, file): (&str, &Path),
    needs: &Needs,
    id: String,
    folder: PathBuf,
) -> Result<Config, ConfigError> {
    Reader { text, file, needs }.read(id, folder)
}

/// Reads the table `[guard]` of a text alone.
///
/// # Errors
/// The text is no TOML, or the table is malformed.
fn settings((text, file): (&str, &Path)) -> Result<GuardSettings, ConfigError> {
    let reader = Reader { text, file, needs: &Needs::default() };
    let mut root = DeTable::parse(text).map_err(|error| reader.malformed(&error, 0))?.into_inner();
    reader.settings(&mut root)
}

/// Reads one file.
struct Reader<'a> {
    text: &'a str,
    file: &'a Path,
    needs: &'a Needs,
}

impl<'a> Reader<'a> {
    fn wrong(&self, at: usize, message: impl Into<String>) -> ConfigError {
        let line =
            self.text.as_bytes()[..at.min(self.text.len())].iter().filter(|b| **b == b'\n').count() + 1;
        FileError { file: self.file.to_path_buf(), line, message: message.into() }.into()
    }

    fn malformed(&self, error: &toml::de::Error, at: usize) -> ConfigError {
        self.wrong(error.span().map_or(at, |span| span.start), error.message())
    }

    fn settings(&self, root: &mut DeTable<'a>) -> Result<GuardSettings, ConfigError> {
        let settings = match root.remove("guard") {
            Some(table) => self.typed(self.table(table, "guard")?, "[guard] has")?,
            None => GuardSettings::default(),
        };
        self.check_settings(&settings)?;
        Ok(settings)
    }

    fn read(&self, id: String, folder: PathBuf) -> Result<Config, ConfigError> {
        let mut root = DeTable::parse(self.text).map_err(|error| self.malformed(&error, 0))?.into_inner();
        self.known(&root, &["guard", "rail", "tools"], "a configuration has")?;
        let settings = self.settings(&mut root)?;
        let mut rules = BTreeMap::new();
        if let Some(tools) = root.remove("tools") {
            for (name, rule) in self.table(tools, "tools")?.into_inner() {
                let rule = self.table(rule, "tools")?;
                rules.insert(name.into_inner().into_owned(), self.typed(rule, "a tool's rule has")?);
            }
        }
        let rules: Rules = Arc::new(rules);
        let mut rails = Vec::new();
        if let Some(all) = root.remove("rail") {
            let at = all.span().start;
            let DeValue::Array(all) = all.into_inner() else {
                return Err(self.wrong(at, "`rail` should be tables: write [[rail]]"));
            };
            for table in all {
                rails.push(self.rail(self.table(table, "rail")?, &settings, &rules)?);
            }
        }
        self.tools_are_judged(&mut rails, &settings, &rules)?;
        if rails.is_empty() {
            return Err(self.wrong(0, "there are no rails; add a [[rail]] with `use` and `on`"));
        }
        self.unique(&rails)?;
        let warnings = self.contradictions(&rails, &settings)?;
        let hash = blake3::hash(self.text.as_bytes()).to_hex().to_string();
        Ok(Config { id, settings, rails, tools: rules, hash, warnings, folder })
    }

    fn table(&self, value: Spanned<DeValue<'a>>, name: &str) -> Result<OptionTable<'a>, ConfigError> {
        let span = value.span();
        match value.into_inner() {
            DeValue::Table(table) => Ok(Spanned::new(span, table)),
            _ => Err(self.wrong(span.start, format!("`{name}` should be a table"))),
        }
    }

    /// Checks the names of a table's keys.
    fn known(&self, table: &DeTable<'_>, names: &[&str], owner: &str) -> Result<(), ConfigError> {
        match table.keys().find(|key| !names.contains(&key.get_ref().as_ref())) {
            None => Ok(()),
            Some(key) => {
                let hint = suggest_name(key.get_ref(), names, owner);
                Err(self.wrong(key.span().start, format!("unknown key `{}`; {hint}", key.get_ref())))
            }
        }
    }

    fn typed<T: DeserializeOwned>(&self, table: OptionTable<'a>, owner: &str) -> Result<T, ConfigError> {
        self.known(table.get_ref(), fields::<T>(), owner)?;
        let at = table.span().start;
        T::deserialize(toml::Deserializer::from(table)).map_err(|error| self.malformed(&error, at))
    }

    fn rail(
        &self,
        table: OptionTable<'a>,
        settings: &GuardSettings,
        rules: &Rules,
    ) -> Result<ConfiguredRail, ConfigError> {
        let span = table.span();
        let places: BTreeMap<String, usize> =
            table.get_ref().iter().map(|(key, _)| (key.get_ref().to_string(), key.span().start)).collect();
        let names = fields::<CommonOptions>();
        let (common, own): (DeTable<'_>, DeTable<'_>) =
            table.into_inner().into_iter().partition(|(key, _)| names.contains(&key.get_ref().as_ref()));
        let common: CommonOptions = self.typed(Spanned::new(span.clone(), common), "a rail has")?;
        let kind = common.kind.get_ref();
        let Some(entry) = registry::find(kind) else {
            let kinds: Vec<&str> = registry::RAILS.iter().map(|entry| entry.manifest.name).collect();
            let hint = suggest_name(kind, &kinds, "there are");
            return Err(self.wrong(common.kind.span().start, format!("no rail is called `{kind}`; {hint}")));
        };
        let options = (entry.options)();
        self.known(&own, &[options, names].concat(), &format!("the rail {kind} has"))?;
        let setting = self.setting(common, entry.manifest, settings, rules, span.start)?;
        let kind = entry.manifest.name;
        let rail = (entry.build)(Spanned::new(span.clone(), own), &setting, self.needs);
        let rail = rail.map_err(|error| match error {
            BuildError::Options(error) => self.wrong(
                error.span().map_or(span.start, |it| it.start),
                format!("rail {kind}: {}", error.message()),
            ),
            BuildError::Refused(refused) => {
                let at = places.get(refused.key).copied().unwrap_or(span.start);
                self.wrong(at, format!("rail {kind}: `{}`: {}", refused.key, refused.message))
            }
        })?;
        if setting.action.rewrites()
            && rail.horizon() == Horizon::Whole
            && setting.on.contains(&Direction::Output)
            && setting.hold != Some(Hold::All)
        {
            let at = places.get("action").copied().unwrap_or(span.start);
            return Err(self.wrong(
                at,
                format!("rail {kind} rewrites an answer only as a whole; write hold = \"all\" (nothing is streamed then), or bound its patterns"),
            ));
        }
        Ok(ConfiguredRail { setting, manifest: entry.manifest, rail: rail.into() })
    }

    fn setting(
        &self,
        common: CommonOptions,
        manifest: &'static Manifest,
        settings: &GuardSettings,
        rules: &Rules,
        at: usize,
    ) -> Result<Setting, ConfigError> {
        let names = |all: &[Direction]| all.iter().map(|it| it.name()).collect::<Vec<_>>().join(", ");
        let kind = manifest.name;
        let Some(on) = common.on else {
            return Err(
                self.wrong(at, format!("rail {kind} has no `on`; it judges {}", names(manifest.directions)))
            );
        };
        let on_at = on.span().start;
        let List(on) = on.into_inner();
        if on.is_empty() || on.iter().collect::<BTreeSet<_>>().len() < on.len() {
            return Err(self.wrong(on_at, "`on` should name each direction once, and at least one"));
        }
        if let Some(other) = on.iter().find(|it| !manifest.directions.contains(it)) {
            let message = format!(
                "rail {kind} does not judge {}; it judges {}",
                other.name(),
                names(manifest.directions)
            );
            return Err(self.wrong(on_at, message));
        }
        let action = match common.action {
            None => manifest.actions[0],
            Some(action) if manifest.actions.contains(action.get_ref()) => action.into_inner(),
            Some(action) => {
                let all: Vec<&str> = manifest.actions.iter().map(|it| it.name()).collect();
                let message = format!(
                    "rail {kind} cannot {}; its actions are {}",
                    action.get_ref().name(),
                    all.join(", ")
                );
                return Err(self.wrong(action.span().start, message));
            }
        };
        if action.rewrites() && on.contains(&Direction::ToolCall) {
            let message = "arguments of a tool's call are blocked or flagged, never rewritten; use another action or leave tool_call out";
            return Err(self.wrong(on_at, message));
        }
        for (key, value) in [
            ("window", common.window.as_ref().map(|it| (it.span().start, *it.get_ref() as u64))),
            ("timeout_ms", common.timeout_ms.as_ref().map(|it| (it.span().start, *it.get_ref()))),
        ] {
            if let Some((at, 0)) = value {
                return Err(self.wrong(at, format!("`{key}` should be at least 1")));
            }
        }
        if let (Some(hold), Some(window)) = (&common.hold, &common.window)
            && *hold.get_ref() == Hold::All
        {
            return Err(self.wrong(
                window.span().start,
                "`window` has no effect with hold = \"all\"; remove one of them",
            ));
        }
        let timeout = match manifest.cost {
            Cost::Text => settings.text_timeout_ms,
            Cost::Model => settings.timeout_ms,
        };
        Ok(Setting {
            name: common.name.map_or(kind.to_string(), Spanned::into_inner),
            on,
            action,
            on_failure: common.on_failure,
            timeout_ms: common.timeout_ms.map_or(timeout, Spanned::into_inner),
            window: common.window.map_or(settings.window, Spanned::into_inner),
            hold: common.hold.map(Spanned::into_inner),
            message: common.message,
            tools: common.tools,
            rules: rules.clone(),
        })
    }

    fn check_settings(&self, settings: &GuardSettings) -> Result<(), ConfigError> {
        let at = self.text.find("[guard]").unwrap_or(0);
        let least = [
            ("window", settings.window as u64, 1),
            ("max_held", settings.max_held as u64, 1024),
            ("timeout_ms", settings.timeout_ms, 1),
            ("text_timeout_ms", settings.text_timeout_ms, 1),
        ];
        match least.iter().find(|(_, value, least)| value < least) {
            Some((key, _, least)) => Err(self.wrong(at, format!("`{key}` should be at least {least}"))),
            None => Ok(()),
        }
    }

    /// Adds the rail that applies rules of tools, if there are rules and the file does not name it.
    fn tools_are_judged(
        &self,
        rails: &mut Vec<ConfiguredRail>,
        settings: &GuardSettings,
        rules: &Rules,
    ) -> Result<(), ConfigError> {
        if rules.is_empty() || rails.iter().any(|rail| rail.manifest.name == "tools") {
            return Ok(());
        }
        let line = "use = \"tools\"\non = [\"tool_call\", \"tool_result\"]\n";
        let table = DeTable::parse(line).map_err(|error| self.malformed(&error, 0))?;
        let own = Reader { text: self.text, file: self.file, needs: self.needs };
        rails.push(own.rail(table, settings, rules)?);
        Ok(())
    }

    /// Checks that names of rails are unique and that names of tools exist.
    fn unique(&self, rails: &[ConfiguredRail]) -> Result<(), ConfigError> {
        let mut seen = BTreeSet::new();
        for (at, rail) in rails.iter().enumerate() {
            let name = &rail.setting.name;
            if !seen.insert(name) {
                let place = self.text.match_indices("[[rail]]").nth(at).map_or(0, |(place, _)| place);
                return Err(
                    self.wrong(place, format!("two rails are called `{name}`; give one another `name`"))
                );
            }
        }
        Ok(())
    }

    /// Refuses settings that contradict each other; returns warnings about those that weaken the guard.
    fn contradictions(
        &self,
        rails: &[ConfiguredRail],
        settings: &GuardSettings,
    ) -> Result<Vec<String>, ConfigError> {
        let mut warnings = Vec::new();
        let place = |key: &str| self.text.find(key).unwrap_or(0);
        let output = |rail: &&ConfiguredRail| rail.setting.on.contains(&Direction::Output);
        if settings.stream_first {
            if let Some(rail) = rails.iter().filter(output).find(|rail| rail.rewrites() || rail.holds_all()) {
                let message = format!(
                    "stream_first sends text before rail `{}` has judged it, which {}; remove one of them",
                    rail.setting.name,
                    if rail.rewrites() { "rewrites it" } else { "holds all of it" },
                );
                return Err(self.wrong(place("stream_first"), message));
            }
            warnings.push("stream_first = true: text is sent before it is judged".into());
        }
        if settings.speculative
            && let Some(rail) =
                rails.iter().find(|rail| rail.rewrites() && rail.setting.on.contains(&Direction::Input))
        {
            let message = format!(
                "speculative generation starts before rail `{}` rewrites the prompt; remove one of them",
                rail.setting.name
            );
            return Err(self.wrong(place("speculative"), message));
        }
        for rail in rails.iter().filter(|rail| rail.setting.on_failure == OnFailure::Allow) {
            warnings.push(format!(
                "rail `{}` lets texts pass when it fails (on_failure = \"allow\")",
                rail.setting.name
            ));
        }
        for rail in rails.iter().filter(output) {
            if rail.rail.horizon() == Horizon::Whole && !rail.holds_all() {
                warnings.push(format!(
                    "rail `{}` judges whole answers but does not hold them: it can only stop the rest of a stream",
                    rail.setting.name
                ));
            }
        }
        Ok(warnings)
    }
}

/// Options of every rail as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommonOptions {
    #[serde(rename = "use")]
    kind: Spanned<String>,
    on: Option<Spanned<List<Direction>>>,
    name: Option<Spanned<String>>,
    action: Option<Spanned<Action>>,
    #[serde(default)]
    on_failure: OnFailure,
    timeout_ms: Option<Spanned<u64>>,
    window: Option<Spanned<usize>>,
    hold: Option<Spanned<Hold>>,
    message: Option<String>,
    #[serde(default)]
    #[serde(deserialize_with = "crate::registry::list")]
    tools: Vec<String>,
}
