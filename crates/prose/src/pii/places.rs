//! Place names: countries, capitals and large cities by gazetteer.
//!
//! A name that is also a person's, a company's or a common word ("Jordan", "Nice", "Reading") counts only after a
//! word that leads to a place, or before the name of a larger one. A name that is part of a longer one ("Berlin
//! Wall", "Bank of England") does not count. Villages, rivers and regions are not included: if recall matters, use a
//! named-entity model.

use std::collections::HashMap;

use super::Entity;
use super::detection::Detection;
use super::names::{Word, adjacent, next_capitalised, word_at};

/// Countries, and cities of at least about a million people, that are rarely anything else.
const SURE: &str = "Afghanistan|Albania|Algeria|Andorra|Angola|Antigua and Barbuda|Argentina|Armenia|Australia|Austria|\
Azerbaijan|Bahrain|Bangladesh|Barbados|Belarus|Belgium|Belize|Benin|Bhutan|Bolivia|Bosnia and Herzegovina|Botswana|Brazil|\
Brunei|Bulgaria|Burkina Faso|Burundi|Cambodia|Cameroon|Canada|Cape Verde|Central African Republic|Chile|China|Colombia|\
Comoros|Costa Rica|Croatia|Cyprus|Czechia|Czech Republic|Denmark|Djibouti|Dominican Republic|East Timor|Ecuador|Egypt|\
El Salvador|Equatorial Guinea|Eritrea|Estonia|Eswatini|Ethiopia|Fiji|Finland|France|Gabon|Gambia|Germany|Ghana|Greece|\
Guatemala|Guinea-Bissau|Guyana|Haiti|Honduras|Hungary|Iceland|India|Indonesia|Iran|Iraq|Ireland|Italy|Ivory Coast|\
Jamaica|Japan|Kazakhstan|Kenya|Kiribati|Kosovo|Kuwait|Kyrgyzstan|Laos|Latvia|Lesotho|Liberia|Libya|Liechtenstein|\
Lithuania|Luxembourg|Madagascar|Malawi|Malaysia|Maldives|Malta|Marshall Islands|Mauritania|Mauritius|Mexico|Micronesia|\
Moldova|Mongolia|Montenegro|Morocco|Mozambique|Myanmar|Namibia|Nauru|Nepal|Netherlands|New Zealand|Nicaragua|Nigeria|\
North Korea|North Macedonia|Northern Ireland|Norway|Pakistan|Palestine|Papua New Guinea|Paraguay|Philippines|Portugal|\
Puerto Rico|Qatar|Romania|Russia|Rwanda|Samoa|Saudi Arabia|Scotland|Senegal|Serbia|Seychelles|Sierra Leone|Singapore|\
Slovakia|Slovenia|Solomon Islands|Somalia|South Africa|South Korea|South Sudan|Sri Lanka|Sudan|Suriname|Sweden|\
Switzerland|Syria|Taiwan|Tajikistan|Tanzania|Thailand|Tonga|Trinidad and Tobago|Tunisia|Turkmenistan|Tuvalu|Uganda|\
Ukraine|United Arab Emirates|United Kingdom|United States of America|United States|Uruguay|Uzbekistan|Vanuatu|\
Vatican City|Venezuela|Vietnam|Wales|Yemen|Zambia|Zimbabwe|England|Great Britain|Hong Kong|Macau|Greenland|Siberia|\
Abidjan|Abu Dhabi|Abuja|Accra|Addis Ababa|Ahmedabad|Aleppo|Algiers|Almaty|Amman|Amsterdam|Ankara|Antananarivo|Antwerp|\
Ashgabat|Astana|Athens|Atlanta|Auckland|Baghdad|Baku|Baltimore|Bamako|Bandung|Bangalore|Bangkok|Barcelona|Beijing|Beirut|\
Belfast|Belgrade|Belo Horizonte|Bengaluru|Berlin|Birmingham|Bishkek|Bogota|Bogotá|Boston|Brasilia|Brasília|Bratislava|\
Brazzaville|Brisbane|Brussels|Bucharest|Budapest|Buenos Aires|Busan|Cairo|Calgary|Canberra|Cape Town|Caracas|Casablanca|\
Changchun|Changsha|Chengdu|Chennai|Chicago|Chittagong|Chongqing|Cologne|Colombo|Copenhagen|Curitiba|Daegu|Dakar|Dalian|\
Damascus|Dar es Salaam|Delhi|Detroit|Dhaka|Dongguan|Dortmund|Dresden|Dubai|Dublin|Durban|Dushanbe|Düsseldorf|Edinburgh|\
Edmonton|Faisalabad|Fortaleza|Frankfurt|Freetown|Fukuoka|Fuzhou|Gaborone|Geneva|Glasgow|Gothenburg|Guadalajara|Guangzhou|\
Guatemala City|Guayaquil|Hamburg|Hangzhou|Hanoi|Harare|Harbin|Havana|Helsinki|Hefei|Hiroshima|Ho Chi Minh City|Hyderabad|\
Ibadan|Incheon|Indianapolis|Islamabad|Istanbul|Izmir|Jaipur|Jakarta|Jeddah|Jerusalem|Jinan|Johannesburg|Kabul|Kampala|\
Kano|Kanpur|Karachi|Kathmandu|Kharkiv|Khartoum|Kigali|Kingston|Kinshasa|Kobe|Kolkata|Kuala Lumpur|Kunming|Kyiv|Kyoto|\
La Paz|Lagos|Lahore|Leeds|Leipzig|Libreville|Lilongwe|Lisbon|Liverpool|Ljubljana|London|Los Angeles|Luanda|Lucknow|\
Lusaka|Lviv|Lyon|Madrid|Managua|Manaus|Manchester|Manila|Maputo|Maracaibo|Marrakesh|Marseille|Mashhad|Medan|Medellin|\
Medellín|Melbourne|Mexico City|Miami|Milan|Milwaukee|Minneapolis|Minsk|Mogadishu|Monrovia|Monterrey|Montevideo|Montreal|\
Moscow|Mosul|Mumbai|Munich|Nagoya|Nagpur|Nairobi|Nanjing|Naples|Nashville|New Delhi|New Orleans|New York City|New York|\
Nicosia|Nouakchott|Novosibirsk|Nuremberg|Odesa|Osaka|Oslo|Ottawa|Ouagadougou|Palermo|Panama City|Patna|\
Philadelphia|Phnom Penh|Pittsburgh|Port-au-Prince|Porto Alegre|Prague|Pretoria|Pune|Pyongyang|Qingdao|Quezon City|Quito|\
Rabat|Rangoon|Recife|Reykjavik|Riga|Rio de Janeiro|Riyadh|Rome|Rotterdam|Sacramento|Saint Petersburg|Salvador|\
Salt Lake City|San Antonio|San Diego|San Francisco|San Jose|San José|Santo Domingo|Sao Paulo|São Paulo|Sapporo|Sarajevo|\
Seattle|Seoul|Seville|Shanghai|Sheffield|Shenyang|Shenzhen|Skopje|St. Petersburg|Stockholm|Strasbourg|Stuttgart|Surabaya|\
Suzhou|Taipei|Tallinn|Tampa|Tashkent|Tbilisi|Tegucigalpa|Tehran|Tel Aviv|The Hague|Tianjin|Tirana|Tokyo|Toronto|Tripoli|\
Tunis|Turin|Ulaanbaatar|Utrecht|Vancouver|Vienna|Vientiane|Vilnius|Warsaw|Washington, D.C.|Washington D.C.|Winnipeg|Wuhan|\
Xi'an|Xiamen|Yangon|Yaounde|Yekaterinburg|Yerevan|Yokohama|Zagreb|Zhengzhou|Zurich|Zürich";

/// Places whose names are as often something else.
const AMBIGUOUS: &str = "Chad|Cuba|Dominica|Georgia|Grenada|Guinea|Israel|Jersey|Jordan|Lebanon|Mali|Monaco|Niger|Oman|Palau|\
Panama|Peru|Poland|Saint Lucia|San Marino|Spain|Togo|Turkey|America|Britain|Adelaide|Aden|Alexandria|Austin|Bath|Bergen|\
Bern|Bonn|Bordeaux|Bristol|Brest|Buffalo|Cali|Cambridge|Cardiff|Charlotte|Cleveland|Columbus|Cork|Dallas|Darwin|Denver|\
Dover|Essen|Florence|Genoa|Ghent|Granada|Graz|Hamilton|Hanover|Houston|Jackson|Lima|Lincoln|Linz|Lens|Madison|Male|Malmo|\
Mecca|Medina|Memphis|Mobile|Nancy|Nantes|Nelson|Nice|Orlando|Oxford|Paris|Perth|Phoenix|Plymouth|Portland|Porto|Quebec|\
Reading|Richmond|Salem|Santiago|Savannah|Sofia|Split|Stanley|Sydney|Tours|Tucson|Valencia|Venice|Verona|Victoria|\
Washington|Wellington|York";

/// Words that precede a place name.
const LEADS: [&str; 18] = [
    "in",
    "from",
    "to",
    "at",
    "near",
    "into",
    "via",
    "around",
    "outside",
    "across",
    "throughout",
    "visited",
    "visit",
    "left",
    "leave",
    "reached",
    "within",
    "towards",
];

/// Words X for which "X of PLACE" is the name of something else.
const HEADS: [&str; 14] = [
    "University",
    "Bank",
    "College",
    "Institute",
    "Church",
    "Museum",
    "Academy",
    "Tower",
    "Treaty",
    "Battle",
    "King",
    "Queen",
    "Duke",
    "Merchant",
];

/// A name from the sure list.
pub(super) fn any(number: u32) -> &'static str {
    let count = SURE.split('|').count();
    SURE.split('|').nth(number as usize % count).unwrap_or_default()
}

/// Compiled gazetteer: complete names by their first word, longest first, with a flag for sure ones.
#[derive(Clone, Debug)]
pub(super) struct Places(HashMap<&'static str, Vec<(&'static str, bool)>>);

impl Places {
    pub(super) fn new() -> Places {
        let mut by_first: HashMap<&'static str, Vec<(&'static str, bool)>> = HashMap::new();
        for (list, sure) in [(SURE, true), (AMBIGUOUS, false)] {
            for name in list.split('|') {
                by_first.entry(word_at(name, 0).text).or_default().push((name, sure));
            }
        }
        by_first.values_mut().for_each(|names| names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len())));
        Places(by_first)
    }

    pub(super) fn find(&self, text: &str, wanted: &impl Fn(Entity) -> bool, found: &mut Vec<Detection>) {
        if !wanted(Entity::Location) {
            return;
        }
        let mut from = 0;
        while let Some(word) = next_capitalised(text, from) {
            from = word.end;
            if let Some((end, sure)) = self.at(text, word)
                && !part_of_more(text, word.start, end)
                && (sure || led(text, word.start) || self.before_larger(text, end))
            {
                found.push(Detection { entity: Entity::Location, start: word.start, end });
                from = end;
            }
        }
    }

    /// Longest name that begins with `word`: its end, and true if it is sure.
    fn at(&self, text: &str, word: Word<'_>) -> Option<(usize, bool)> {
        let names = self.0.get(word.text)?;
        let rest = &text[word.start..];
        let whole = |name: &&(&'static str, bool)| {
            rest.starts_with(name.0) && !rest[name.0.len()..].starts_with(char::is_alphanumeric)
        };
        names.iter().find(whole).map(|(name, sure)| (word.start + name.len(), *sure))
    }

    /// Returns true if a comma and another place follow: "Paris, France".
    fn before_larger(&self, text: &str, end: usize) -> bool {
        let next = text[end..].strip_prefix(',').and_then(|_| adjacent(text, end + 1));
        next.is_some_and(|next| self.at(text, next).is_some())
    }
}

/// Returns true if a word that leads to a place precedes `start`.
fn led(text: &str, start: usize) -> bool {
    let before = text[..start].strip_suffix(' ').map(|before| before.strip_suffix(" the").unwrap_or(before));
    let Some(before) = before else { return false };
    let word = before.rsplit(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    LEADS.iter().any(|lead| lead.eq_ignore_ascii_case(word))
}

/// Returns true if the name continues ("Berlin Wall"), is joined to another word, or belongs to an institution ("Bank
/// of England").
fn part_of_more(text: &str, start: usize, end: usize) -> bool {
    if adjacent(text, end).is_some() {
        return true;
    }
    let rest = &text[end..];
    let joined = |c: char| matches!(c, '-' | '_' | '@' | '/');
    let mail = rest.starts_with('.') && rest[1..].starts_with(char::is_alphanumeric);
    if mail || rest.starts_with(joined) || text[..start].ends_with(|c: char| joined(c) || c == '.') {
        return true;
    }
    let head = text[..start].strip_suffix(" of ").or_else(|| text[..start].strip_suffix(" of the "));
    let head = head.map(|head| head.rsplit(|c: char| !c.is_alphabetic()).next().unwrap_or_default());
    head.is_some_and(|head| HEADS.contains(&head))
}
