//! Character classes by their role in mojibake: ftfy's categories, as bodies of regex classes.

/// Characters that occur in many contexts.
pub(super) const COMMON: &str = "\u{a0}\u{ad}´·–-―’…";
/// C1 controls.
pub(super) const C1: &str = "\u{80}-\u{9f}";
/// Characters that are nearly always mojibake.
pub(super) const BAD: &str = "¤¦¨ª¬¯¸ºƒˆˇ˘˛˜†‡‰⌐◊\u{fffd}";
/// Pilcrow and section.
pub(super) const LAW: &str = "§¶";
/// Currency signs.
pub(super) const CURRENCY: &str = "¢£¥₧€";
/// Opening punctuation.
pub(super) const START_PUNCTUATION: &str = "¡©«¿΄΅‘‚“„•‹\u{f8ff}";
/// Closing punctuation.
pub(super) const END_PUNCTUATION: &str = "®»˝”›™";
/// Mathematical symbols.
pub(super) const NUMERIC: &str = "±-³µ¹¼-¾×÷⁄№∂∆∏∑√∞∩∫≈≠≡≤≥";
/// Letters used in kaomoji faces.
pub(super) const KAOMOJI: &str = "°Ò-ÖÙ-Üò-öø-üŌŐŪŲ";
/// Accented capitals.
pub(super) const UPPER_ACCENTED: &str = "À-ÑØÜÝĀĂĄĆČĎĐĒĖĘĚĞĢĪİĶĹĻĽŁŃŅŇŒŘŚŞŠŢŤŮŰŸŹŻŽҐ";
/// Accented lower-case letters.
pub(super) const LOWER_ACCENTED: &str = "ß-ñüāăąćčďđēėęěğģīįķĺļľłœŕśşšťźżžґﬁﬂ";
/// Greek and Cyrillic capitals.
pub(super) const UPPER_COMMON: &str = "ÞΆΈ-ΊΌΎΏΑ-ΫЁ-Я";
/// Greek and Cyrillic lower-case letters.
pub(super) const LOWER_COMMON: &str = "ά-ωа-џ";
/// Box drawing.
pub(super) const BOX: &str = "│┌┐┘├┤┬┼═-╬▀▄█▌▐-▓";

/// Characters that the bytes C2 to DF become in one-byte encodings.
pub(super) const UTF8_FIRST_OF_2: &str = "Â-ßĀĂĆČĎĐĒĖĘĚĞĢĪİĶĹĻŁŃŅŇŌŐŘŚŞŠŢŪŮŰŲŹŻŽΒ-ΡΣ-ίВ-Я";
/// Characters for the bytes E0 to EF.
pub(super) const UTF8_FIRST_OF_3: &str = "à-ïāăąćčďēėęěģīįķĺļŕźΰ-οа-п";
/// Characters for the bytes F0 to F4.
pub(super) const UTF8_FIRST_OF_4: &str = "ðóđğšπσру";
/// Characters for continuation bytes, including the space that a byte A0 may have become.
pub(super) const UTF8_CONTINUATION: &str =
    " \u{80}-¿ÆØæøĄąĽľŁłŒœŖŗŚśŞ-šŤťŸ-žƒˆˇ˘˛-˝΄-ΆΈ-ΊΌΎΏЁ-ЌЎЏё-ќўџҐґ–-―‘-‚“-„†-•…‰‹›€№™";
/// Characters for continuation bytes that do not occur in plain text.
pub(super) const UTF8_CONTINUATION_STRICT: &str =
    "\u{80}-¿ÆØæøĄąĽľŁłŒœŖŗŚśŞ-šŤťŸ-žƒˆˇ˘˛-˝΄-ΆΈ-ΊΌΎΏЁ-ЌЎЏё-ќўџҐґ†‡‰‹›€№™";
