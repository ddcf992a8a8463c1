//! The table of kinds, by country. Forms are regular expressions over ASCII without regard to case.

use super::{checks, coins};
use crate::pii::Entity;

/// A kind of number.
pub(super) struct Kind {
    pub(super) entity: Entity,
    /// Form that counts by itself; empty for none.
    pub(super) certain: &'static str,
    /// Form that counts near a word; empty for none.
    pub(super) doubtful: &'static str,
    /// Words that name the kind, in lower case, separated by `|`.
    pub(super) words: &'static str,
    /// Check of the capital letters and digits of a number.
    pub(super) check: fn(&[u8]) -> bool,
}

/// A number of Korea: a birthday, a digit of those given, and six more. What follows may be a syllable.
macro_rules! korean {
    ($first:literal) => {
        concat!(r"(?-u:\b)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])", $first, r"[0-9]{6}(?-u:\b)")
    };
}

macro_rules! kind {
    ($entity:ident, $certain:expr, $doubtful:expr, $check:expr, $words:expr) => {
        Kind { entity: Entity::$entity, certain: $certain, doubtful: $doubtful, words: $words, check: $check }
    };
}

/// All kinds.
#[rustfmt::skip]
pub(super) const KINDS: &[Kind] = &[
    kind!(AuAbn, r"\d{2} \d{3} \d{3} \d{3}", r"\d{11}", checks::au_abn, "abn|australian business number"),
    kind!(AuAcn, "", r"\d{3} \d{3} \d{3}|\d{9}", checks::au_acn, "acn|australian company number"),
    kind!(AuMedicare, "", r"[2-6]\d{3} \d{5} \d|[2-6]\d{9}", checks::au_medicare, "medicare"),
    kind!(AuTfn, "", r"\d{3} \d{3} \d{3}|\d{9}", checks::au_tfn, "tfn|tax file number"),
    kind!(CaSin, r"[1-79]\d\d(?:-\d{3}-\d{3}| \d{3} \d{3})", r"[1-79]\d{8}", checks::luhn,
        "sin|social insurance|canada|canadian|nas|assurance sociale"),
    kind!(DeBsnr, "", r"\d{9}", checks::de_bsnr,
        "bsnr|betriebsstättennummer|betriebsstätte|praxisnummer|arztpraxis|praxis|hauptbetriebsstätte|nebenbetriebsstätte"),
    kind!(DeFuehrerschein, "", r"[A-Z]{2}\d{8}[A-Z\d]", checks::any,
        "führerschein|führerscheinnummer|fahrerlaubnis|fahrerlaubnisnummer|driving licence|driving license|licence number|license number"),
    kind!(DeHandelsregister, r"HR[AB]\s{0,3}\d{1,6}", "", checks::any, ""),
    kind!(DeHealthInsurance, "", r"[A-Z]\d{9}", checks::de_health_insurance,
        "kvnr|krankenversicherungsnummer|krankenversichertennummer|versichertennummer|versicherungsnummer|krankenkasse|krankenversicherung|\
         gesundheitskarte|egk|gkv|versichertenkarte"),
    kind!(DeIdCard, "", r"[CFGHJKLMNPRTVWXYZ][CFGHJKLMNPRTVWXYZ\d]{8}\d?", checks::de_document,
        "personalausweis|personalausweisnummer|ausweis|ausweisnummer|ausweisdokument|dokumentennummer|seriennummer|npa|identity card|national id"),
    kind!(DeKfz, "", r"(?i)\b[A-ZÄÖÜ]{1,3}(?: [A-Z]{1,2} |-[A-Z]{1,2}[- ])[0-9]{1,4}[EH]?\b", checks::any,
        "kennzeichen|kfz-kennzeichen|kfz|nummernschild|zulassung|fahrzeug|auto|pkw|lkw|fahrzeugschein|fahrzeugbrief"),
    kind!(DeLanr, "", r"\d{9}", checks::de_lanr,
        "lanr|arztnummer|arzt-nr|arzt nr|arzt-nummer|vertragsarzt|kassenarzt|hausarzt|facharzt|arzt|rezept|verschreibung|kbv"),
    kind!(DePassport, "", r"[CFGHJKLMNPRTVWXYZ][CFGHJKLMNPRTVWXYZ\d]{8}\d?", checks::de_document,
        "reisepass|reisepassnummer|pass|passnummer|pass-nr|passport|dokumentennummer|ausweisdokument|mrz"),
    kind!(DePlz, "", r"0[1-9]\d{3}|[1-9]\d{4}", checks::de_plz,
        "plz|postleitzahl|postanschrift|adresse|wohnort|wohnanschrift|lieferadresse|rechnungsadresse|straße|strasse|hausnummer|postfach|ort"),
    kind!(DeSocialSecurity, r"\d{8}[A-Z]\d{3}", "", checks::de_social_security, ""),
    kind!(DeTaxId, r"[1-9]\d \d{3} \d{3} \d{3}", r"[1-9]\d{10}", checks::de_tax_id,
        "steuer-id|steuerid|idnr|steuer-idnr|steueridentifikationsnummer|steuerliche identifikationsnummer|identifikationsnummer|steuernummer|bzst"),
    kind!(DeTaxNumber, r"\d{3}/\d{3}/\d{5}", r"(?:0[1-9]|1[0-6])\d{11}|\d{2,3}/\d{3,4}/\d{4,5}", checks::any,
        "steuernummer|steuer-nr|steuer nr|st.-nr|st-nr|finanzamt|umsatzsteuer|einkommensteuer|steuerbescheid"),
    kind!(DeVatId, r"DE[ .-]?\d{3}[ .-]?\d{3}[ .-]?\d{3}", "", checks::any, ""),
    kind!(EsNie, r"[XYZ]-?\d{7}-?[A-Z]", "", checks::es_nie, ""),
    kind!(EsNif, r"\d{7,8}-?[A-Z]", "", checks::es_nif, ""),
    kind!(EsPassport, "", r"[A-Z]{3}\d{6}", checks::any, "pasaporte|passport"),
    kind!(FiPersonalIdentityCode, r"\d{6}[-+A-FU-Y]\d{3}[\dA-FHJ-NPR-Y]", "", checks::fi_personal_identity_code, ""),
    kind!(InAadhaar, r"\d{4}(?:-\d{4}-| \d{4} |:\d{4}:)\d{4}", r"\d{12}", checks::in_aadhaar, "aadhaar|aadhar|uidai|uid"),
    kind!(InGstin, r"(?:[0-3]\d|9[79])[A-Z]{5}\d{4}[A-Z][A-Z\d]Z[A-Z\d]", "", checks::in_gstin, ""),
    kind!(InPan, r"[A-Z]{3}[ABCFGHJLPT][A-Z]\d{4}[A-Z]", r"[A-Z]{5}\d{4}[A-Z]", checks::any, "pan|permanent account number"),
    kind!(InPassport, "", r"[A-Z][1-9]\d ?\d{4}[1-9]", checks::any, "passport"),
    kind!(InVehicleRegistration,
        r"(?:A[NPRS]|BR|C[GH]|D[DLN]|G[AJ]|H[PR]|J[HK]|K[AL]|L[AD]|M[HLNPZ]|NL|O[DR]|P[BY]|RJ|SK|T[NRS]|U[KP]|WB)\d{1,2}[A-Z]{1,3}\d{4}|[2-9][1-9]BH\d{4}[A-HJ-NP-Z]{2}|\d{2}[A-FHKPRX]\d{6}[A-Z]",
        r"[A-Z]{1,3}\d{4}|I\d{5}|\d{1,3}(?:CD|CC|UN)[1-9]\d{1,3}", checks::any, "vehicle|plate|registration|rto"),
    kind!(InVoter, "", r"[A-Z]{3}\d{7}", checks::any, "voter|epic|elector"),
    kind!(ItDriverLicense, "", r"[A-Z]{2}\d{7}[A-Z]|U1[B-HJ-NPR-UWYXZ\d]{7}[A-Z]", checks::any, "patente|licenza"),
    kind!(ItFiscalCode, r"[A-Z]{6}[\dL-V]{2}[A-EHLMPR-T][\dL-V]{2}[A-Z][\dL-V]{3}[A-Z]", "", checks::it_fiscal_code, ""),
    kind!(ItIdentityCard, "", r"[A-Z]{2}\s?\d{7}|\d{7}[A-Z]{2}|[A-Z]{2}\d{5}[A-Z]{2}", checks::any,
        "carta|identità|elettronica|cie|documento|riconoscimento|espatrio"),
    kind!(ItPassport, "", r"[A-Z]{2}\d{7}", checks::any, "passaporto|viaggio|documento|dogana"),
    kind!(ItVatCode, "", r"\d(?:[ _]?\d){10}", checks::it_vat_code, "piva|partita iva|p.iva|p. iva|pi"),
    kind!(KrBrn, r"(?-u:\b)[0-9]{3}-[0-9]{2}-[0-9]{5}(?-u:\b)", r"(?-u:\b)[0-9]{10}(?-u:\b)", checks::kr_brn,
        "사업자등록번호|사업자번호|사업자|brn|business registration number|business number|tax registration number"),
    kind!(KrDriverLicense, r"(?-u:\b)[0-9]{2}-[0-9]{2}-[0-9]{6}-[0-9]{2}(?-u:\b)",
        r"(?-u:\b)[0-9]{2}[ -]?[0-9]{2}[ -]?[0-9]{6}[ -]?[0-9]{2}(?-u:\b)", checks::kr_driver_license,
        "운전면허번호|운전면허|면허번호|korean driver license|korean driver's license"),
    kind!(KrFrn, korean!("-[5-8]"), korean!("[5-8]"), checks::any,
        "외국인등록번호|외국인번호|frn|foreigner registration number"),
    kind!(KrPassport, "", r"(?i-u:\b[MSROD](?:[0-9]{3}[A-Z][0-9]{4}|[0-9]{8})\b)", checks::any, "여권|passport"),
    kind!(KrRrn, korean!("-[1-4]"), korean!("[1-4]"), checks::any,
        "주민등록번호|rrn|resident registration number"),
    kind!(NgNin, "", r"\d{11}", checks::ng_nin, "nin|nimc|national identification number|national identity|nigeria id|nigerian identification"),
    kind!(NgVehicleRegistration, "", r"[A-Z]{3}[- ]?\d{3}[A-Z]{2}", checks::any,
        "plate|plate number|number plate|vehicle|vehicle registration|license plate|registration"),
    kind!(PhTin, "", r"\d{3}-\d{3}-\d{3}(?:-\d{3})?|\d{9}|\d{12}", checks::ph_tin,
        "tin|taxpayer identification number|bir|taxpayer id|tax id"),
    kind!(PlPesel, r"\d{11}", "", checks::pl_pesel, ""),
    kind!(SeOrganisationsnummer, r"\d{6}-\d{4}", r"\d{10}", checks::se_organisationsnummer,
        "organisationsnummer|orgnr|org nr|org.nr|företagsnummer"),
    kind!(SePersonnummer, r"(?:\d{2})?\d{6}[-+]\d{4}", r"(?:\d{2})?\d{10}", checks::se_personnummer,
        "personnummer|samordningsnummer|svensk id|personal identity number|ssn"),
    kind!(SgNricFin, r"[STFGM]\d{7}[A-Z]", r"[A-Z]\d{7}[A-Z]", checks::any, "nric|fin"),
    kind!(SgUen, r"[TSR]\d{2}[A-Z]{2}\d{4}[A-Z]", r"\d{8,9}[A-Z]", checks::sg_uen, "uen|unique entity number|business registration|acra"),
    kind!(ThTnin, r"[1-9](?:[134]\d|2[0-7]|5[0-8]|[67][0-7]|[89][0-6])\d{10}", "", checks::th_tnin, ""),
    kind!(TrLicensePlate, "", r"(?:0[1-9]|[1-7]\d|8[01])(?:\s?[A-PR-VY-Z]{1,3}\s?|-[A-PR-VY-Z]{1,3}-)\d{2,4}", checks::any,
        "plaka|plakası|plate|license plate|number plate|kayıt"),
    kind!(TrNationalId, r"[1-9]\d{10}", "", checks::tr_national_id, ""),
    kind!(UkDrivingLicence, r"[A-Z9]{5}\d(?:0[1-9]|1[0-2]|5[1-9]|6[0-2])(?:0[1-9]|[12]\d|3[01])\d[A-Z9]{2}[A-Z\d][A-Z]{2}", "",
        checks::uk_driving_licence, ""),
    kind!(UkNhs, "", r"\d{3}[- ]?\d{3}[- ]?\d{4}", checks::uk_nhs, "nhs|national health service|health authority"),
    kind!(UkNino, r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]", "", checks::uk_nino, ""),
    kind!(UkPassport, "", r"[A-Z]{2}\d{7}", checks::any, "passport|travel document|hmpo"),
    kind!(UkPostcode, "",
        r"GIR\s?0AA|[A-PR-UWYZ](?:\d[A-HJKPSTUW]?|\d{2}|[A-HK-Y]\d[ABEHMNPRVWXY]?|[A-HK-Y]\d{2})\s?\d[ABD-HJLNP-UW-Z]{2}", checks::any,
        "postcode|post code|postal code|address|delivery|mailing|shipping"),
    kind!(UkVehicleRegistration, "",
        r"[A-HJ-PR-Y]{2}(?:0[2-9]|[12]\d|5[1-9]|[67]\d)[- ]?[A-HJ-PR-Z]{3}|[A-HJ-NPR-TV-Y]\d{1,3}[- ]?[A-HJ-PR-Y][A-HJ-PR-Z]{2}|[A-HJ-PR-Z]{3}[- ]?\d{1,3}[- ]?[A-HJ-NPR-TV-Y]",
        checks::any, "vehicle|registration|number plate|licence plate|license plate|reg|vrn|dvla|v5c|logbook|mot|car"),
    kind!(UsAbaRouting, "", r"[0123678]\d{8}|[0123678]\d{3}-\d{4}-\d", checks::us_aba, "aba|routing|routing number"),
    kind!(UsBankNumber, "", r"\d{8,17}", checks::any, "account|acct|bank|check|debit|savings"),
    kind!(UsItin, r"9\d{2}[- ](?:5\d|6[0-5]|7\d|8[0-8]|9[0-24-9])[- ]\d{4}",
        r"9\d{2}[- ]?(?:5\d|6[0-5]|7\d|8[0-8]|9[0-24-9])[- ]?\d{4}", checks::any, "itin|taxpayer|individual taxpayer|tax|tin"),
    kind!(UsMbi,
        r"[1-9][AC-HJKMNP-RT-Y][AC-HJKMNP-RT-Y\d]\d(?:-[AC-HJKMNP-RT-Y][AC-HJKMNP-RT-Y\d]\d-|[AC-HJKMNP-RT-Y][AC-HJKMNP-RT-Y\d]\d)[AC-HJKMNP-RT-Y]{2}\d{2}",
        "", checks::any, ""),
    kind!(UsMedicalLicense, "", r"[A-HJ-MPRSTUX][A-Z9]\d{7}", checks::us_dea, "dea|medical|certificate|license"),
    kind!(UsNpi, r"[12]\d{3}[ -]\d{3}[ -]\d{3}", r"[12]\d{9}", checks::us_npi, "npi|national provider|provider|taxonomy"),
    kind!(ZaIdNumber, r"\d{10}[0-2][89]\d", "", checks::za_id, ""),
    kind!(Crypto, r"(?-u:\b)(?:bc1[02-9ac-hj-np-z]{8,87}|[13][1-9A-HJ-NP-Za-km-z]{25,34})(?-u:\b)", "", coins::is_address, ""),
    kind!(MacAddress, r"(?:[\dA-F]{2}:){5}[\dA-F]{2}|(?:[\dA-F]{2}-){5}[\dA-F]{2}|(?:[\dA-F]{4}\.){2}[\dA-F]{4}", "", checks::mac, ""),
];
