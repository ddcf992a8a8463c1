//! Numbers of countries, banks and registries: published examples with right check digits, and the same ones with wrong
//! ones.

use fathom_prose::pii::{Entity, Pii, PiiOptions};

/// Kind, a word that names it, and an example from the authority's own description or from the standard.
const EXAMPLES: &[(Entity, &str, &str)] = &[
    (Entity::AuAbn, "ABN", "51 824 753 556"),
    (Entity::AuAcn, "ACN", "004 085 616"),
    (Entity::AuMedicare, "Medicare", "2123 45670 1"),
    (Entity::AuTfn, "TFN", "123 456 782"),
    (Entity::CaSin, "SIN", "130 692 544"),
    (Entity::DeHealthInsurance, "KVNR", "A123456780"),
    (Entity::DeIdCard, "Ausweis", "L01X00T471"),
    (Entity::DeSocialSecurity, "", "15070649C103"),
    (Entity::DeTaxId, "Steuer-ID", "47036892816"),
    (Entity::EsNie, "", "X1234567L"),
    (Entity::EsNif, "", "12345678Z"),
    (Entity::FiPersonalIdentityCode, "", "131052-308T"),
    (Entity::InAadhaar, "", "2341 2341 2346"),
    (Entity::ItFiscalCode, "", "RSSMRA85T10A562S"),
    (Entity::ItVatCode, "partita IVA", "12345670785"),
    (Entity::KrBrn, "", "220-81-62517"),
    (Entity::PlPesel, "", "44051401359"),
    (Entity::SeOrganisationsnummer, "", "556016-0680"),
    (Entity::SePersonnummer, "", "811228-9874"),
    (Entity::SgUen, "UEN", "200312345H"),
    (Entity::ThTnin, "", "1101700230708"),
    (Entity::TrNationalId, "", "10000000146"),
    (Entity::UkNhs, "NHS", "943 476 5919"),
    (Entity::UsAbaRouting, "routing", "021000021"),
    (Entity::UsMedicalLicense, "DEA", "BB1388568"),
    (Entity::UsNpi, "NPI", "1234567893"),
    (Entity::ZaIdNumber, "", "8001015009087"),
    (Entity::Crypto, "", "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"),
    (Entity::Crypto, "", "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4"),
    (Entity::Crypto, "", "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0"),
];

fn pii(entity: Entity) -> Pii {
    Pii::new(&PiiOptions { entities: vec![entity], ..PiiOptions::default() }).unwrap()
}

/// The texts that are found in a text.
fn found<'a>(pii: &Pii, text: &'a str) -> Vec<&'a str> {
    pii.find(text).iter().map(|it| &text[it.start..it.end]).collect()
}

#[test]
fn published_numbers_are_found_and_a_wrong_check_digit_is_not() {
    for (entity, word, number) in EXAMPLES {
        let pii = pii(*entity);
        let text = format!("Hers, {word} {number}, was here.");
        assert_eq!(found(&pii, &text), [*number], "{entity:?}");
        // Each of the other nine digits, or letters, in place of the last one.
        let last = number.chars().next_back().unwrap();
        let others: Vec<char> = match last {
            '0'..='9' => ('0'..='9').collect(),
            'A'..='Z' => ('A'..='Z').collect(),
            _ => ('a'..='z').collect(),
        };
        let wrong = others.iter().filter(|other| **other != last).filter(|other| {
            let text = text.replace(*number, &format!("{}{other}", &number[..number.len() - 1]));
            !found(&pii, &text).is_empty()
        });
        // The ninth digit of a card of Medicare checks, the tenth counts cards; a Spanish letter may be of another number.
        let allowed = if *entity == Entity::AuMedicare { 9 } else { 0 };
        assert_eq!(wrong.count(), allowed, "{entity:?}");
    }
}

#[test]
fn a_number_that_anything_may_be_needs_a_word_unless_all_are_wanted() {
    let loose =
        |entity| PiiOptions { entities: vec![entity], without_context: true, ..PiiOptions::default() };
    for (entity, word, number) in [
        (Entity::UkPostcode, "postcode", "SW1A 1AA"),
        (Entity::UkPassport, "passport", "AB1234567"),
        (Entity::UsBankNumber, "account", "945456787654"),
        (Entity::DePlz, "PLZ", "10115"),
        (Entity::KrPassport, "여권", "M12345678"),
        (Entity::DeKfz, "Kennzeichen", "B-MW 1234"),
    ] {
        let bare = format!("it is {number} there");
        assert!(found(&pii(entity), &bare).is_empty(), "{entity:?}");
        assert_eq!(found(&pii(entity), &format!("{word} {number} there")), [number], "{entity:?}");
        assert_eq!(found(&Pii::new(&loose(entity)).unwrap(), &bare), [number], "{entity:?}");
    }
}

#[test]
fn forms_of_their_own_are_found_in_either_case_and_next_to_other_scripts() {
    for (entity, text, number) in [
        (Entity::UkNino, "my number ab 12 34 56 c is", "ab 12 34 56 c"),
        (Entity::DeVatId, "USt-IdNr. DE 136 695 976.", "DE 136 695 976"),
        (Entity::InPan, "PAN: ABCPE1234F", "ABCPE1234F"),
        (Entity::MacAddress, "on 00:1A:2b:3C:4d:5E now", "00:1A:2b:3C:4d:5E"),
        (Entity::KrRrn, "번호는 900101-1234567입니다", "900101-1234567"),
        (Entity::UsItin, "ITIN 912-70-1234", "912-70-1234"),
        (Entity::UsMbi, "card 1EG4-TE5-MK73", "1EG4-TE5-MK73"),
        (Entity::SgNricFin, "NRIC S1234567D", "S1234567D"),
        (Entity::DeHandelsregister, "Amtsgericht HRB 12345", "HRB 12345"),
    ] {
        assert_eq!(found(&pii(entity), text), [number], "{entity:?}");
    }
}

#[test]
fn letters_that_fold_into_ascii_break_nothing() {
    // The long s and the sign of kelvin have ASCII letters as their other case.
    let all = PiiOptions { entities: Entity::ALL.to_vec(), without_context: true, ..PiiOptions::default() };
    let pii = Pii::new(&all).unwrap();
    for text in
        ["K123456780 ſſſſſſ85T10A562ſ", "ſR85A12345", "١٢٣٤٥٦٧٨٩٠١ 12٣456789", "bc1qK ſ1234567D", "X٧٧٧٧٧٧٧L"]
    {
        let cuts = text.char_indices().map(|(at, _)| at).chain([text.len()]);
        cuts.for_each(|at| assert!(pii.find(&text[..at]).iter().all(|it| it.end <= at)));
    }
}

#[test]
fn a_growing_text_keeps_back_the_number_that_it_may_end_with() {
    for (entity, text, open) in [
        (Entity::UkNino, "number ab 12 34 56 ", "ab 12 34 56 "),
        (Entity::DeKfz, "plate B-MW 12", "B-MW 12"),
        (Entity::UkPostcode, "postcode SW1A 1", "SW1A 1"),
    ] {
        assert_eq!(&text[pii(entity).first_open(text)..], open, "{entity:?}");
    }
}

#[test]
fn zeros_are_no_number_and_every_state_of_india_registers() {
    for (entity, zeros) in [
        (Entity::AuTfn, "TFN 000 000 000"),
        (Entity::AuAcn, "ACN 000 000 000"),
        (Entity::UkNhs, "NHS 000 000 0000"),
        (Entity::UsAbaRouting, "routing 000000000"),
    ] {
        assert!(found(&pii(entity), zeros).is_empty(), "{zeros}");
    }
    let of_state = |state: &str| format!("{state}AAACH7409R1ZZ");
    for state in ["01", "27", "38", "97", "99"] {
        assert_eq!(found(&pii(Entity::InGstin), &of_state(state)).len(), 1, "{state}");
    }
    for state in ["00", "39", "98"] {
        assert!(found(&pii(Entity::InGstin), &of_state(state)).is_empty(), "{state}");
    }
}

#[test]
fn words_that_name_a_kind_may_be_capitals_of_any_alphabet() {
    let licence = pii(Entity::DeFuehrerschein);
    let number = "AB123456780";
    let near = |word: &str| found(&licence, &format!("{word} {number}")).len();
    assert_eq!((near("Führerschein"), near("FÜHRERSCHEIN"), near("Nummer")), (1, 1, 0));
}
