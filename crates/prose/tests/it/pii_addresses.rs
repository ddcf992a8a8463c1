//! Postal addresses: each is redacted completely, whatever its form, and text that only looks like one is kept.

use fathom_prose::pii::{Entity, Pii, PiiOptions};

/// Addresses in the United States: invented ones, and public buildings. The last ones lack a town or a code.
const AMERICAN: [&str; 66] = [
    "2055 Niagara Falls Blvd, Amherst NY 14228",
    "250 Rt 59, Airmont NY 10901",
    "1600 Pennsylvania Avenue NW, Washington, DC 20500",
    "1600 Amphitheatre Parkway, Mountain View, CA 94043",
    "350 Fifth Avenue, New York, NY 10118",
    "20 W 34th St., New York, NY 10001, USA",
    "1 Infinite Loop, Cupertino, CA 95014",
    "One Microsoft Way, Redmond, WA 98052",
    "410 Terry Ave. N., Seattle, WA 98109",
    "221 Lynnshore, Lynn MA 1905",
    "12 Old Mill Rd, Halifax MA 2338",
    "66-4 Parkside Rd, Chelmsford MA 1824",
    "374 William T Manning Blvd, Fall River MA 2721",
    "1471 S Washington St, North Attleboro MA 2760",
    "555 Hubbard Ave-Suite 12, Pittsfield MA 1201",
    "3005 Cranberry Hwy Rt 6 28, Wareham MA 2538",
    "141 Jefferson Ave Extension, Albany NY 12205",
    "13858 Rt 31 W, Albion NY 14411",
    "101 Sanford Farm Shpg Center, Amsterdam NY 12010",
    "6265 Brockport Spencerport Rd, Brockport NY 14420",
    "42 Fairway Commons Way, Fairhaven MA 2719",
    "8064 Brewerton Rd, Cicero NY 13039",
    "5399 W Genesse St, Camillus NY 13031",
    "3191 County Rd 10, Canandaigua NY 14424",
    "30 Catskill, Catskill NY 12414",
    "161 Centereach Mall, Centereach NY 11720",
    "3949 Route 31, Clay NY 13041",
    "139 Merchant Place, Cobleskill NY 12043",
    "85 Crooked Hill Road, Commack NY 11725",
    "1818 State Route 3, Fulton NY 13069",
    "2765 U.S. Highway 9, Valatie NY 12184",
    "12 Farm to Market Road 1960, Houston, TX 77073",
    "4820 FM 1960, Houston, TX 77069",
    "500 I-35, Austin, TX 78701",
    "350 South 200 East, Salt Lake City, UT 84111",
    "N6W23001 Bluemound Rd, Waukesha, WI 53188",
    "37-18 Main St, Flushing, NY 11354",
    "123 1/2 Maple Street, Ithaca, NY 14850",
    "221B Elm Court, Apt. 4C, St. Paul, MN 55102-1234",
    "742 Evergreen Terrace, Springfield, IL 62704",
    "88 Colin P. Kelly Jr. St, San Francisco, CA 94107",
    "1200 Avenue of the Americas, New York, NY 10036",
    "77 Massachusetts Ave, Cambridge, Massachusetts 02139",
    "1 Dr. Carlton B. Goodlett Pl, San Francisco, California 94102",
    "P.O. Box 1234, Springfield, IL 62701",
    "PO Box 77, Fargo ND 58102",
    "Post Office Box 9, Nome, Alaska 99762",
    "RR 2 Box 45, Ames, IA 50010",
    "PSC 3 Box 4120, APO AE 09012",
    "Suite 400, 1 Main St, Boston, MA 02110",
    "300 Ocean Blvd #12, Long Beach, CA 90802",
    "300 Ocean Blvd, Unit B-7, Long Beach, CA 90802",
    "9 Calle Luna, San Juan, PR 00901",
    "15 Rue Royale, New Orleans, LA 70130",
    "4500 Coeur d'Alene Ave, Coeur d'Alene, ID 83814",
    "7 Winston-Salem Way, Winston-Salem, NC 27101",
    "100 Universal City Plaza, Universal City, CA 91608, United States",
    "1600 Amphitheatre Parkway\nMountain View, CA 94043",
    "19 Pine Lane\nApt 3\nBend, OR 97701\nUSA",
    "18 Cedar Street, Denver",
    "18 Cedar Street, Denver, CO",
    "18 Cedar Street, Apt 4, Denver CO",
    "18 Cedar Street",
    "45 N. Oak Ave",
    "12 Main Street 90210",
    "PO Box 77",
];

/// Addresses in Britain, Canada and Australia.
const BRITISH: [&str; 26] = [
    "10 Downing Street, London SW1A 2AA",
    "10 Downing Street, London, SW1A 2AA, UK",
    "221B Baker Street, London NW1 6XE",
    "Flat 3, 22 High Street, Leeds LS1 4AB",
    "Flat 3, 22 High Street, Leeds",
    "10, Downing Street, London SW1A 2AA",
    "1 Poultry, London EC2R 8EJ",
    "30 St Mary Axe, London EC3A 8BF",
    "4 Privet Close, Little Whinging, Surrey GU1 1AA",
    "4 Privet Close, Little Whinging, Surrey",
    "The Old Rectory, 5 Church Lane, Aldbury, Tring, Hertfordshire, HP23 5RS, UK",
    "Rose Cottage, 7 The Green, Long Melford, Sudbury CO10 9DU",
    "64 Zoo Lane, Stratford-upon-Avon, Warwickshire CV37 6BB",
    "12 Market Hill, Bury St Edmunds IP33 1AA, England",
    "Unit 5, 18 Mill Road, Cambridge CB1 2AB",
    "27 St. Giles, Oxford OX1 3LD",
    "1-3 The Strand, London WC2N 5EJ",
    "8 Princes Street, Edinburgh, Scotland EH2 2AN",
    "3 Stryd Fawr, Caernarfon, Gwynedd, LL55 1RR",
    "9 Malone Road, Belfast BT9 6RY, Northern Ireland",
    "10 Downing Street SW1A 2AA",
    "10 Downing Street, London SW1A",
    "10 Downing Street, London",
    "111 Wellington Street, Ottawa, ON K1A 0A9, Canada",
    "24 Sussex Drive, Ottawa ON K1M1M4",
    "1 Macquarie Street, Sydney NSW 2000, Australia",
];

/// Texts with numbers, streets, towns or codes that are not addresses.
const NONE: [&str; 37] = [
    "12 Angry Men is a film; 7 Eleven is a shop; 5 Way Mix is a drink.",
    "In 2019 Wall Street fell, and since 1929 Main Street has not forgotten.",
    "By 2008 Wall Street was broken; from 1990 Sesame Street was on the air.",
    "In 2019 Acme Holdings, Boston MA 02110, was sold.",
    "He lived on Maple Street in the city for 20 years.",
    "Will The Market Street Fair open? Paris, 1999 Party of the Year.",
    "The top 10 Boston, MA 02110 is a code and a list.",
    "Boston, MA 02110 and London SW1A 2AA have no number before them.",
    "Chapter 3 Close Encounters, chapter 4 Court of Owls.",
    "Route 66 and Highway 61 are roads; I-95 is too, and exit 12 comes next.",
    "12 34 56 78 90 12 34 56",
    "1,200 Main Street shops and 3.5 Mile Road races, $20 Park Place bets.",
    "let a = [12, 14, 15]; // 10 Downing",
    "if (x == 404) return Not_Found; int Street = 5;",
    "Version 12 Release 3, Build 1600 OK 12345.",
    "See RFC 2119 Section 4, and ISO 8601 Annex A.",
    "In May 5, Boston, MA 02110 was cold.",
    "There were 3 Little Pigs and 101 Dalmatians, 7 Samurai and 12 Monkeys.",
    "1984 George Orwell; 2001 A Space Odyssey; 300 Spartans.",
    "On January 5, 2021, Washington 1776 was played.",
    "2 Corinthians 3, Psalm 23, 1 Kings 12.",
    "Mozart: Symphony No. 40, K 550; Beethoven op. 27 No 2.",
    "The 1st Street and the 2nd Avenue are long.",
    "Team A 12 Team B 14 Team C 15",
    "May 2020 Annual Report, June 2021 Street Survey",
    "404 Not Found and 500 Internal Server Error, 301 Moved Permanently",
    "Lot 7 Ming Vase, Lot 8 Bronze Bell",
    "COVID-19 Vaccine, B12 Vitamin, H2 O, 3D Drive and 4K Way.",
    "for 5 Star Hotels, 4 Wheel Drive cars and 24 Hour Service",
    "Windows 10 Pro, Office 365 Home, iPhone 12 Max",
    "HC 12 rises, RR 18 falls, and PSC 3 stays.",
    "0xDEADBEEF 0x1F Street, 10e5 Lane",
    "He scored 12 in Springfield IL and 14 in Lynn MA.",
    "A table: 1 Alpha 2 Beta 3 Gamma 4 Delta.",
    "6 Nations 2020 Ireland 19 Scotland 12",
    "at 12:30 Main Street Station closes; at 7 Street lights go on",
    "Item 02110 MA, SKU 4 MA 02110, size 10 OR 12345",
];

fn addresses() -> Pii {
    Pii::new(&PiiOptions { entities: vec![Entity::Address], ..PiiOptions::default() }).unwrap()
}

/// Every address alone, at the end of a sentence, in the middle of one, and between lines.
#[test]
fn addresses_are_redacted_whole() {
    let pii = addresses();
    let mut wrong = Vec::new();
    for address in AMERICAN.iter().chain(&BRITISH) {
        for (before, after) in [
            ("", ""),
            ("Send it to ", "."),
            ("They met at ", " at noon; then they left."),
            ("Acme Inc.\n", "\n\nThe second paragraph."),
            ("(", ")"),
            ("Address: ", " | Phone: none"),
        ] {
            let text = format!("{before}{address}{after}");
            let wanted = format!("{before}<ADDRESS>{after}");
            let found = pii.apply(&text).0;
            if found != wanted {
                wrong.push(format!("{text:?}: {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} torn or missed: {wrong:#?}", wrong.len());
}

#[test]
fn text_that_is_no_address_is_left() {
    let pii = addresses();
    let touched: Vec<_> =
        NONE.iter().map(|text| pii.apply(text).0).filter(|text| text.contains('<')).collect();
    assert!(touched.is_empty(), "{touched:#?}");
}

/// Two consecutive addresses are separate detections, and text after an address stays.
#[test]
fn neighbours_of_addresses_stay() {
    let pii = addresses();
    for (text, wanted) in [
        ("12 Oak St, Salem, MA 01970; 14 Oak St, Salem, MA 01970", "<ADDRESS>; <ADDRESS>"),
        ("12 Oak St, Salem, MA 01970 2024 report", "<ADDRESS> 2024 report"),
        ("I left 12 Oak Street, and The Times said so", "I left <ADDRESS>, and The Times said so"),
        ("I left 12 Oak Street, The Times said", "I left <ADDRESS>, The Times said"),
        ("At 12 Oak Street, I saw him", "At <ADDRESS>, I saw him"),
        ("from 1600 Pennsylvania Avenue NW, Washington, DC 20500 on", "from <ADDRESS> on"),
        ("Tel 555-1234, 12 Oak St, Salem, MA 01970", "Tel 555-1234, <ADDRESS>"),
        ("12 Oak Street. Boston is far", "<ADDRESS>. Boston is far"),
    ] {
        assert_eq!(pii.apply(text).0, wanted);
    }
}
