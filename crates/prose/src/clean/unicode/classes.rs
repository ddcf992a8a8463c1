//! Characters by the part they play in mojibake: ftfy's categories, as bodies of regex classes.

/// Characters of many contexts.
pub(super) const COMMON: &str = "\u{a0}\u{ad}´·–-―’…";
/// C1 controls.
pub(super) const C1: &str = "\u{80}-\u{9f}";
/// Characters that are nearly always mojibake.
pub(super) const BAD: &str = "¤¦¨ª¬¯¸ºƒˆˇ˘˛˜†‡‰⌐◊\u{fffd}";
/// Pilcrow and section.
pub(super) const LAW: &str = "§¶";
/// Currency signs.
pub(super) const CURRENCY: &str = "¢£¥₧€";
/// Marks that begin something.
pub(super) const START_PUNCTUATION: &str = "¡©«¿΄΅‘‚“„•‹\u{f8ff}";
/// Marks that end something.
pub(super) const END_PUNCTUATION: &str = "®»˝”›™";
/// Mathematical signs.
pub(super) const NUMERIC: &str = "±-³µ¹¼-¾×÷⁄№∂∆∏∑√∞∩∫≈≠≡≤≥";
/// Letters of emoticon faces.
pub(super) const KAOMOJI: &str = "°Ò-ÖÙ-Üò-öø-üŌŐŪŲ";
/// Accented capitals.
pub(super) const UPPER_ACCENTED: &str = "À-ÑØÜÝĀĂĄĆČĎĐĒĖĘĚĞĢĪİĶĹĻĽŁŃŅŇŒŘŚŞŠŢŤŮŰŸŹŻŽҐ";
/// Accented small letters.
pub(super) const LOWER_ACCENTED: &str = "ß-ñüāăąćčďđēėęěğģīįķĺļľłœŕśşšťźżžґﬁﬂ";
/// Capitals of Greek and Cyrillic.
pub(super) const UPPER_COMMON: &str = "ÞΆΈ-ΊΌΎΏΑ-ΫЁ-Я";
/// Small letters of Greek and Cyrillic.
pub(super) const LOWER_COMMON: &str = "ά-ωа-џ";
/// Box drawing.
pub(super) const BOX: &str = "│┌┐┘├┤┬┼═-╬▀▄█▌▐-▓";

/// Characters that bytes C2 to DF become in a one-byte encoding.
pub(super) const UTF8_FIRST_OF_2: &str = "Â-ßĀĂĆČĎĐĒĖĘĚĞĢĪİĶĹĻŁŃŅŇŌŐŘŚŞŠŢŪŮŰŲŹŻŽΒ-ΡΣ-ίВ-Я";
/// Those of bytes E0 to EF.
pub(super) const UTF8_FIRST_OF_3: &str = "à-ïāăąćčďēėęěģīįķĺļŕźΰ-οа-п";
/// Those of bytes F0 to F4.
pub(super) const UTF8_FIRST_OF_4: &str = "ðóđğšπσру";
/// Those of continuation bytes, with the space that a byte A0 may have become.
pub(super) const UTF8_CONTINUATION: &str =
    " \u{80}-¿ÆØæøĄąĽľŁłŒœŖŗŚśŞ-šŤťŸ-žƒˆˇ˘˛-˝΄-ΆΈ-ΊΌΎΏЁ-ЌЎЏё-ќўџҐґ–-―‘-‚“-„†-•…‰‹›€№™";
/// Those of continuation bytes that do not stand in plain text.
pub(super) const UTF8_CONTINUATION_STRICT: &str =
    "\u{80}-¿ÆØæøĄąĽľŁłŒœŖŗŚśŞ-šŤťŸ-žƒˆˇ˘˛-˝΄-ΆΈ-ΊΌΎΏЁ-ЌЎЏё-ќўџҐґ†‡‰‹›€№™";
