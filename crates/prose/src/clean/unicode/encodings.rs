//! One-byte encodings in which text is commonly misread, given as the characters of bytes 80 to FF.
//!
//! The `sloppy` ones read bytes undefined in their standard like Latin-1, and byte 1A as U+FFFD.

struct Encoding {
    name: &'static str,
    sloppy: bool,
    high: &'static str,
}

/// Characters below this are looked up in a table.
const TABLED: usize = 0x2600;

/// An encoding with the reverse mapping from characters to bytes.
#[derive(Clone, Debug)]
pub(super) struct Codec {
    pub(super) name: &'static str,
    pub(super) sloppy: bool,
    high: &'static str,
    bytes: Vec<u8>,
}

impl Codec {
    /// All encodings, in the order tried.
    pub(super) fn all() -> Vec<Codec> {
        ENCODINGS.iter().map(Codec::new).collect()
    }

    fn new(encoding: &Encoding) -> Codec {
        let mut bytes = vec![0u8; TABLED];
        for b in 0x80..=0xffu8 {
            let latin1 = char::from(b);
            let c = if encoding.high.is_empty() {
                Some(latin1)
            } else {
                encoding.high.chars().nth(b as usize - 0x80)
            };
            if let Some(slot) = c.and_then(|c| bytes.get_mut(c as usize)) {
                *slot = b;
            }
        }
        Codec { name: encoding.name, sloppy: encoding.sloppy, high: encoding.high, bytes }
    }

    /// Encodes `text`; `None` if a character has no byte.
    pub(super) fn encode(&self, text: &str) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(text.len());
        for c in text.chars() {
            out.push(self.byte(c)?);
        }
        Some(out)
    }

    fn byte(&self, c: char) -> Option<u8> {
        match c {
            '\u{1a}' if self.sloppy => None,
            '\u{fffd}' if self.sloppy => Some(0x1a),
            c if c.is_ascii() => Some(c as u8),
            c => match self.bytes.get(c as usize) {
                Some(0) => None,
                Some(&byte) => Some(byte),
                None => self.high.chars().position(|h| h == c).map(|i| 0x80 + i as u8),
            },
        }
    }
}

/// Windows-1252 character for a C1 control; the five undefined bytes stay unchanged.
pub(super) fn windows_1252(c1: char) -> char {
    let at = (c1 as usize).wrapping_sub(0x80);
    ENCODINGS[1].high.chars().nth(at).unwrap_or(c1)
}

/// Encodings, in the order tried.
const ENCODINGS: [Encoding; 10] = [
    Encoding { name: "latin-1", sloppy: false, high: "" },
    Encoding {
        name: "sloppy-windows-1252",
        sloppy: true,
        high: "€\u{81}‚ƒ„…†‡ˆ‰Š‹Œ\u{8d}Ž\u{8f}\u{90}‘’“”•–—˜™š›œ\u{9d}žŸ\u{a0}¡¢£¤¥¦§¨©ª«¬\u{ad}®¯°±²³´\
µ¶·¸¹º»¼½¾¿ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ×ØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõö÷øùúûüýþÿ",
    },
    Encoding {
        name: "sloppy-windows-1251",
        sloppy: true,
        high: "ЂЃ‚ѓ„…†‡€‰Љ‹ЊЌЋЏђ‘’“”•–—\u{98}™љ›њќћџ\u{a0}ЎўЈ¤Ґ¦§Ё©Є«¬\u{ad}®Ї°±Ііґµ¶·ё№є»јЅѕїАБВГДЕЖЗИ\
ЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯабвгдежзийклмнопрстуфхцчшщъыьэюя",
    },
    Encoding {
        name: "sloppy-windows-1250",
        sloppy: true,
        high: "€\u{81}‚\u{83}„…†‡\u{88}‰Š‹ŚŤŽŹ\u{90}‘’“”•–—\u{98}™š›śťžź\u{a0}ˇ˘Ł¤Ą¦§¨©Ş«¬\u{ad}®Ż°±˛ł´\
µ¶·¸ąş»Ľ˝ľżŔÁÂĂÄĹĆÇČÉĘËĚÍÎĎĐŃŇÓÔŐÖ×ŘŮÚŰÜÝŢßŕáâăäĺćçčéęëěíîďđńňóôőö÷řůúűüýţ˙",
    },
    Encoding {
        name: "sloppy-windows-1253",
        sloppy: true,
        high: "€\u{81}‚ƒ„…†‡\u{88}‰\u{8a}‹\u{8c}\u{8d}\u{8e}\u{8f}\u{90}‘’“”•–—\u{98}™\u{9a}›\u{9c}\
\u{9d}\u{9e}\u{9f}\u{a0}΅Ά£¤¥¦§¨©ª«¬\u{ad}®―°±²³΄µ¶·ΈΉΊ»Ό½ΎΏΐΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡÒΣΤΥΦΧΨΩΪΫ\
άέήίΰαβγδεζηθικλμνξοπρςστυφχψωϊϋόύώÿ",
    },
    Encoding {
        name: "sloppy-windows-1254",
        sloppy: true,
        high: "€\u{81}‚ƒ„…†‡ˆ‰Š‹Œ\u{8d}\u{8e}\u{8f}\u{90}‘’“”•–—˜™š›œ\u{9d}\u{9e}Ÿ\u{a0}¡¢£¤¥¦§¨©ª«¬\
\u{ad}®¯°±²³´µ¶·¸¹º»¼½¾¿ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏĞÑÒÓÔÕÖ×ØÙÚÛÜİŞßàáâãäåæçèéêëìíîïğñòóôõö÷øùúûüışÿ",
    },
    Encoding {
        name: "sloppy-windows-1257",
        sloppy: true,
        high: "€\u{81}‚\u{83}„…†‡\u{88}‰\u{8a}‹\u{8c}¨ˇ¸\u{90}‘’“”•–—\u{98}™\u{9a}›\u{9c}¯˛\u{9f}\u{a0}\
¡¢£¤¥¦§Ø©Ŗ«¬\u{ad}®Æ°±²³´µ¶·ø¹ŗ»¼½¾æĄĮĀĆÄÅĘĒČÉŹĖĢĶĪĻŠŃŅÓŌÕÖ×ŲŁŚŪÜŻŽßąįāćäåęēčéźėģķīļšńņó\
ōõö÷ųłśūüżž˙",
    },
    Encoding {
        name: "iso-8859-2",
        sloppy: false,
        high: "\u{80}\u{81}\u{82}\u{83}\u{84}\u{85}\u{86}\u{87}\u{88}\u{89}\u{8a}\u{8b}\u{8c}\u{8d}\
\u{8e}\u{8f}\u{90}\u{91}\u{92}\u{93}\u{94}\u{95}\u{96}\u{97}\u{98}\u{99}\u{9a}\u{9b}\
\u{9c}\u{9d}\u{9e}\u{9f}\u{a0}Ą˘Ł¤ĽŚ§¨ŠŞŤŹ\u{ad}ŽŻ°ą˛ł´ľśˇ¸šşťź˝žżŔÁÂĂÄĹĆÇČÉĘËĚÍÎĎĐŃŇÓÔŐ\
Ö×ŘŮÚŰÜÝŢßŕáâăäĺćçčéęëěíîďđńňóôőö÷řůúűüýţ˙",
    },
    Encoding {
        name: "macroman",
        sloppy: false,
        high: "ÄÅÇÉÑÖÜáàâäãåçéèêëíìîïñóòôöõúùûü†°¢£§•¶ß®©™´¨≠ÆØ∞±≤≥¥µ∂∑∏π∫ªºΩæø¿¡¬√ƒ≈∆«»…\u{a0}ÀÃÕŒœ–—“\
”‘’÷◊ÿŸ⁄€‹›ﬁﬂ‡·‚„‰ÂÊÁËÈÍÎÏÌÓÔ\u{f8ff}ÒÚÛÙıˆ˜¯˘˙˚¸˝˛ˇ",
    },
    Encoding {
        name: "cp437",
        sloppy: false,
        high: "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫\
╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}",
    },
];
