//! Word lists for postal addresses: kinds of streets, units, states, counties, countries.

/// Kinds of streets, full and abbreviated, that turn a number and a name into an address.
const KINDS: &str = "Street St Avenue Ave Av Road Rd Boulevard Blvd Lane Ln Drive Dr Court Ct Way Place Pl Square Sq Terrace \
Ter Parkway Pkwy Highway Hwy Circle Cir Trail Trl Alley Crescent Close Gardens Row Mews Turnpike Tpke Expressway Expy Freeway \
Fwy";
/// Words that may follow a kind of street.
const AFTER_KINDS: &str =
    "Extension Ext N S E W NE NW SE SW North South East West Northeast Northwest Southeast Southwest";
/// Kinds of numbered roads: "250 Rt 59".
const ROUTES: &str = "Rt Rte Route Hwy Highway";
/// Words before those: "State Route 9", "County Road 12".
const ROUTE_KINDS: &str = "State County US U.S Old Rural";
/// Parts of a building.
const UNITS: &str =
    "Apt Apartment Suite Ste Unit Floor Fl Flat Room Rm Bldg Building Dept Lot Space Spc Trlr Level Box";
/// Lower-case words inside street and town names.
const CONNECTORS: &str = "of the and de la del los las el y on upon in by under le du des & next to";
/// Those of them that are allowed without a code after the street.
const ARTICLES: &str = "of the de la del las los";
/// Words that exclude a drive from being a street: "4 Wheel Drive".
const NO_NAMES: &str = "Wheel Hard Disk Flash Test Front Rear";
/// Numbers written out in addresses of offices: "One Microsoft Way".
const NUMBERS: &str = "One Two Three Four Five Six Seven Eight Nine Ten";

/// Two-letter codes of states, districts, territories and military mail.
const STATES: &str = "AL AK AZ AR CA CO CT DE FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT NE NV NH NJ NM NY NC ND \
OH OK OR PA RI SC SD TN TX UT VT VA WA WV WI WY DC PR GU VI AS MP AE AP AA";
const STATE_NAMES: &str = "Alabama|Alaska|Arizona|Arkansas|California|Colorado|Connecticut|Delaware|Florida|Georgia|Hawaii|Idaho|\
Illinois|Indiana|Iowa|Kansas|Kentucky|Louisiana|Maine|Maryland|Massachusetts|Michigan|Minnesota|Mississippi|Missouri|Montana|\
Nebraska|Nevada|New Hampshire|New Jersey|New Mexico|New York|North Carolina|North Dakota|Ohio|Oklahoma|Oregon|Pennsylvania|\
Rhode Island|South Carolina|South Dakota|Tennessee|Texas|Utah|Vermont|Virginia|Washington|West Virginia|Wisconsin|Wyoming|\
Puerto Rico|Ala|Ariz|Ark|Calif|Colo|Conn|Fla|Ill|Ind|Kans|Mass|Mich|Minn|Miss|Mont|Nebr|Okla|Ore|Penn|Tenn|Tex|Wash|Wis";
const AUSTRALIAN: &str = "NSW VIC QLD WA SA TAS ACT NT";
/// British counties and regions.
const COUNTIES: &str = "Bedfordshire|Berkshire|Buckinghamshire|Cambridgeshire|Cheshire|Cornwall|Cumbria|Derbyshire|Devon|Dorset|\
Durham|East Sussex|East Yorkshire|Essex|Gloucestershire|Greater Manchester|Hampshire|Herefordshire|Hertfordshire|Kent|Lancashire|\
Leicestershire|Lincolnshire|Merseyside|Middlesex|Norfolk|North Yorkshire|Northamptonshire|Northumberland|Nottinghamshire|\
Oxfordshire|Rutland|Shropshire|Somerset|South Yorkshire|Staffordshire|Suffolk|Surrey|Tyne and Wear|Warwickshire|West Midlands|\
West Sussex|West Yorkshire|Wiltshire|Worcestershire|Fife|Gwynedd|Powys|Dyfed|Gwent|County Antrim|County Down";
const COUNTRIES: &str = "United States of America|United States|United Kingdom|Great Britain|Northern Ireland|USA|U.S.A|US|U.S|UK|U.K|\
England|Scotland|Wales|Canada|Australia|Ireland";

/// Words after which a number between 1700 and 2030 is a year, and others after which it may be one.
const YEAR_LEADS: &str = "in since until till during circa year summer spring autumn winter january february march april may june \
july august september october november december";
const PERHAPS_YEAR_LEADS: &str = "by before after from of and late early mid around fall";
/// Capitalized words that begin a part of a sentence rather than name a town.
const NO_TOWNS: &str = "A I An The This That These He She We They It You His Her Our My Your Their But And Or So If When Where While \
After Before In On At By From For With As Mr Mrs Ms Dr Prof Monday Tuesday Wednesday Thursday Friday Saturday Sunday Tel Phone \
Fax Email Call Please";

fn is_of(list: &str, word: &str) -> bool {
    list.split(' ').any(|one| one == word)
}

pub(super) fn is_kind(word: &str) -> bool {
    is_of(KINDS, word)
}

pub(super) fn is_after_kind(word: &str) -> bool {
    is_of(AFTER_KINDS, word)
}

pub(super) fn is_route(word: &str) -> bool {
    is_of(ROUTES, word)
}

pub(super) fn is_route_kind(word: &str) -> bool {
    is_of(ROUTE_KINDS, word)
}

pub(super) fn is_unit(word: &str) -> bool {
    is_of(UNITS, word)
}

pub(super) fn is_connector(word: &str) -> bool {
    is_of(CONNECTORS, word)
}

pub(super) fn is_article(word: &str) -> bool {
    is_of(ARTICLES, word)
}

pub(super) fn is_no_name(word: &str) -> bool {
    is_of(NO_NAMES, word)
}

pub(super) fn is_year_lead(word: &str) -> bool {
    is_of(YEAR_LEADS, &word.to_ascii_lowercase())
}

pub(super) fn is_perhaps_year_lead(word: &str) -> bool {
    is_of(PERHAPS_YEAR_LEADS, &word.to_ascii_lowercase())
}

pub(super) fn is_no_town(word: &str) -> bool {
    is_of(NO_TOWNS, word)
}

pub(super) fn numbers() -> impl Iterator<Item = &'static str> {
    NUMBERS.split(' ')
}

pub(super) fn is_state(word: &str) -> bool {
    is_of(STATES, word)
}

pub(super) fn is_australian(word: &str) -> bool {
    is_of(AUSTRALIAN, word)
}

/// Lists of names that the words of an address are compared with.
#[derive(Clone, Copy)]
pub(super) enum Names {
    States,
    Counties,
    Countries,
}

/// Number of leading `words` that form one of the names; the longest match.
pub(super) fn name_len<'a>(names: Names, words: impl Iterator<Item = &'a str> + Clone) -> Option<usize> {
    let list = match names {
        Names::States => STATE_NAMES,
        Names::Counties => COUNTIES,
        Names::Countries => COUNTRIES,
    };
    let first = words.clone().next()?;
    let len = |name: &str| {
        let mut words = words.clone();
        let same = name.starts_with(first) && name.split(' ').all(|part| words.next() == Some(part));
        same.then(|| name.split(' ').count())
    };
    list.split('|').filter_map(len).max()
}
