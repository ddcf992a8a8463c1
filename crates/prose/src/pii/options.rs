//! Options for the detection and treatment of personal data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Declares the kinds with their names in configurations and their marks in redacted text.
macro_rules! entities {
    ($($(#[$doc:meta])+ $kind:ident $name:literal $mark:literal,)+) => {
        /// A kind of personal data; of the common ones, the more certain first.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
        )]
        #[serde(rename_all = "snake_case")]
        pub enum Entity {
            $($(#[$doc])+ $kind,)+
        }

        impl Entity {
            /// All kinds of personal data, the common ones first.
            pub const ALL: &[Entity] = &[$(Entity::$kind),+];

            /// Name in configurations.
            pub fn name(self) -> &'static str {
                match self {
                    $(Entity::$kind => $name,)+
                }
            }

            /// Mark written by a redaction.
            pub fn mark(self) -> &'static str {
                match self {
                    $(Entity::$kind => $mark,)+
                }
            }
        }
    };
}

entities! {
    /// A mail address.
    Email "email" "EMAIL_ADDRESS",
    /// A bank account, by country, length and check digits (mod 97).
    Iban "iban" "IBAN_CODE",
    /// A payment card, by issuer, length and check digit (Luhn).
    CreditCard "credit_card" "CREDIT_CARD",
    /// A US social security number.
    UsSsn "us_ssn" "US_SSN",
    /// An address of IP version 4 or 6.
    Ip "ip" "IP_ADDRESS",
    /// A telephone number.
    Phone "phone" "PHONE_NUMBER",
    /// A number near the word passport.
    UsPassport "us_passport" "US_PASSPORT",
    /// A number near the words of a driver's licence.
    UsDriverLicense "us_driver_license" "US_DRIVER_LICENSE",
    /// A postal address.
    Address "address" "ADDRESS",
    /// A URL.
    Url "url" "URL",
    /// A date or a time of day.
    DateTime "date_time" "DATE_TIME",
    /// A name of a person.
    Person "person" "PERSON",
    /// A country or a large city.
    Location "location" "LOCATION",
    /// Australia: business number.
    AuAbn "au_abn" "AU_ABN",
    /// Australia: company number.
    AuAcn "au_acn" "AU_ACN",
    /// Australia: Medicare card.
    AuMedicare "au_medicare" "AU_MEDICARE",
    /// Australia: tax file number.
    AuTfn "au_tfn" "AU_TFN",
    /// Canada: social insurance number.
    CaSin "ca_sin" "CA_SIN",
    /// Germany: number of a medical practice.
    DeBsnr "de_bsnr" "DE_BSNR",
    /// Germany: driving licence.
    DeFuehrerschein "de_fuehrerschein" "DE_FUEHRERSCHEIN",
    /// Germany: commercial register.
    DeHandelsregister "de_handelsregister" "DE_HANDELSREGISTER",
    /// Germany: health insurance number.
    DeHealthInsurance "de_health_insurance" "DE_HEALTH_INSURANCE",
    /// Germany: identity card.
    DeIdCard "de_id_card" "DE_ID_CARD",
    /// Germany: registration plate.
    DeKfz "de_kfz" "DE_KFZ",
    /// Germany: number of a physician.
    DeLanr "de_lanr" "DE_LANR",
    /// Germany: passport.
    DePassport "de_passport" "DE_PASSPORT",
    /// Germany: postal code.
    DePlz "de_plz" "DE_PLZ",
    /// Germany: pension insurance number.
    DeSocialSecurity "de_social_security" "DE_SOCIAL_SECURITY",
    /// Germany: tax identification number.
    DeTaxId "de_tax_id" "DE_TAX_ID",
    /// Germany: tax number.
    DeTaxNumber "de_tax_number" "DE_TAX_NUMBER",
    /// Germany: VAT identification number.
    DeVatId "de_vat_id" "DE_VAT_ID",
    /// Spain: number of a foreigner (NIE).
    EsNie "es_nie" "ES_NIE",
    /// Spain: tax number (NIF, DNI).
    EsNif "es_nif" "ES_NIF",
    /// Spain: passport.
    EsPassport "es_passport" "ES_PASSPORT",
    /// Finland: personal identity code.
    FiPersonalIdentityCode "fi_personal_identity_code" "FI_PERSONAL_IDENTITY_CODE",
    /// India: Aadhaar number.
    InAadhaar "in_aadhaar" "IN_AADHAAR",
    /// India: goods and services tax number.
    InGstin "in_gstin" "IN_GSTIN",
    /// India: permanent account number.
    InPan "in_pan" "IN_PAN",
    /// India: passport.
    InPassport "in_passport" "IN_PASSPORT",
    /// India: registration plate.
    InVehicleRegistration "in_vehicle_registration" "IN_VEHICLE_REGISTRATION",
    /// India: voter's card.
    InVoter "in_voter" "IN_VOTER",
    /// Italy: driving licence.
    ItDriverLicense "it_driver_license" "IT_DRIVER_LICENSE",
    /// Italy: fiscal code.
    ItFiscalCode "it_fiscal_code" "IT_FISCAL_CODE",
    /// Italy: identity card.
    ItIdentityCard "it_identity_card" "IT_IDENTITY_CARD",
    /// Italy: passport.
    ItPassport "it_passport" "IT_PASSPORT",
    /// Italy: VAT number.
    ItVatCode "it_vat_code" "IT_VAT_CODE",
    /// South Korea: business registration number.
    KrBrn "kr_brn" "KR_BRN",
    /// South Korea: driving licence.
    KrDriverLicense "kr_driver_license" "KR_DRIVER_LICENSE",
    /// South Korea: foreigner registration number.
    KrFrn "kr_frn" "KR_FRN",
    /// South Korea: passport.
    KrPassport "kr_passport" "KR_PASSPORT",
    /// South Korea: resident registration number.
    KrRrn "kr_rrn" "KR_RRN",
    /// Nigeria: national identification number.
    NgNin "ng_nin" "NG_NIN",
    /// Nigeria: registration plate.
    NgVehicleRegistration "ng_vehicle_registration" "NG_VEHICLE_REGISTRATION",
    /// Philippines: taxpayer identification number.
    PhTin "ph_tin" "PH_TIN",
    /// Poland: PESEL number.
    PlPesel "pl_pesel" "PL_PESEL",
    /// Sweden: organisation number.
    SeOrganisationsnummer "se_organisationsnummer" "SE_ORGANISATIONSNUMMER",
    /// Sweden: personal identity number.
    SePersonnummer "se_personnummer" "SE_PERSONNUMMER",
    /// Singapore: identity card or foreigner's number.
    SgNricFin "sg_nric_fin" "SG_NRIC_FIN",
    /// Singapore: unique entity number.
    SgUen "sg_uen" "SG_UEN",
    /// Thailand: national identification number.
    ThTnin "th_tnin" "TH_TNIN",
    /// Turkey: registration plate.
    TrLicensePlate "tr_license_plate" "TR_LICENSE_PLATE",
    /// Turkey: national identification number.
    TrNationalId "tr_national_id" "TR_NATIONAL_ID",
    /// United Kingdom: driving licence.
    UkDrivingLicence "uk_driving_licence" "UK_DRIVING_LICENCE",
    /// United Kingdom: number of the National Health Service.
    UkNhs "uk_nhs" "UK_NHS",
    /// United Kingdom: National Insurance number.
    UkNino "uk_nino" "UK_NINO",
    /// United Kingdom: passport.
    UkPassport "uk_passport" "UK_PASSPORT",
    /// United Kingdom: postcode.
    UkPostcode "uk_postcode" "UK_POSTCODE",
    /// United Kingdom: registration plate.
    UkVehicleRegistration "uk_vehicle_registration" "UK_VEHICLE_REGISTRATION",
    /// United States: routing number of a bank.
    UsAbaRouting "us_aba_routing" "US_ABA_ROUTING",
    /// United States: number of a bank account.
    UsBankNumber "us_bank_number" "US_BANK_NUMBER",
    /// United States: individual taxpayer identification number.
    UsItin "us_itin" "US_ITIN",
    /// United States: Medicare beneficiary identifier.
    UsMbi "us_mbi" "US_MBI",
    /// United States: number of the Drug Enforcement Administration.
    UsMedicalLicense "us_medical_license" "US_MEDICAL_LICENSE",
    /// United States: national provider identifier.
    UsNpi "us_npi" "US_NPI",
    /// South Africa: identity number.
    ZaIdNumber "za_id_number" "ZA_ID_NUMBER",
    /// An address of Bitcoin, by its checksum.
    Crypto "crypto" "CRYPTO",
    /// A hardware address of a network card.
    MacAddress "mac_address" "MAC_ADDRESS",
}

impl Entity {
    /// Kinds that occur in texts of any country; the others are numbers that a country, a bank or a registry gives out.
    pub const COMMON: &[Entity] = Self::ALL.split_at(13).0;
}

/// Treatment of a detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A mark of its kind stands in its place, `<EMAIL_ADDRESS>`.
    #[default]
    Redact,
    /// An invented value of the same kind stands in its place, the same one wherever the value occurs.
    Replace,
    /// A mark with a keyed hash of the value stands in its place, `<EMAIL_ADDRESS:6f1c..>`.
    Hash,
}

/// Which kinds are looked for and what becomes of them. By default all common kinds but dates, URLs and places, which text
/// is full of without their being personal; NeMo Curator 0.x took these too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PiiOptions {
    /// Kinds that are looked for. NeMo Curator 0.x also took dates, URLs and places, of which text is full without their being
    /// personal.
    pub entities: Vec<Entity>,
    /// Treatment of detections.
    pub action: Action,
    /// Secret text that decides invented values and hashes: the same salt gives the same values. `hash` needs one.
    pub salt: String,
    /// Any text that has the form of a kind counts, even if the form is ambiguous and no word nearby names the kind: nine
    /// digits may be a tax file number anywhere, and `5/21` a date.
    pub without_context: bool,
    /// Countries (ISO 3166, two letters) whose phones are found as they are written there, by libphonenumber's tables,
    /// without a word such as "phone" before them: `["FR", "JP"]`. With a word, phones of all countries are found.
    pub phone_countries: Vec<String>,
}

impl PiiOptions {
    /// Placeholder for the salt in a recipe that others may read; it is never used as a salt.
    pub const HIDDEN_SALT: &str = "hidden; give it again";
}

impl Default for PiiOptions {
    fn default() -> Self {
        let quiet = |e: &Entity| !matches!(e, Entity::Url | Entity::DateTime | Entity::Location);
        let entities = Entity::COMMON.iter().copied().filter(quiet).collect();
        let (action, salt) = (Action::Redact, String::new());
        PiiOptions { entities, action, salt, without_context: false, phone_countries: Vec::new() }
    }
}
