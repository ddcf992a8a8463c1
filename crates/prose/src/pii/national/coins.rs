//! Addresses of Bitcoin: Base58Check with two rounds of SHA-256, and Bech32 (BIP 173, BIP 350).

use sha2::{Digest, Sha256};

const BASE58: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
const BECH32: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";
/// Constants that the checksums of Bech32 and Bech32m end with.
const ENDS: [u32; 2] = [1, 0x2bc8_30a3];
const GENERATORS: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];

/// Returns whether an address's checksum is right.
pub(super) fn is_address(address: &[u8]) -> bool {
    match address.strip_prefix(b"bc1") {
        Some(data) => is_bech32(data),
        None => is_base58(address),
    }
}

fn is_base58(address: &[u8]) -> bool {
    // A version, 20 bytes of a hash and 4 of a checksum.
    let mut bytes = [0u8; 25];
    for byte in address {
        let Some(mut rest) = BASE58.iter().position(|it| it == byte) else { return false };
        for place in bytes.iter_mut().rev() {
            rest += usize::from(*place) * 58;
            *place = (rest % 256) as u8;
            rest /= 256;
        }
        if rest > 0 {
            return false;
        }
    }
    let (data, sum) = bytes.split_at(21);
    Sha256::digest(Sha256::digest(data))[..4] == *sum
}

fn is_bech32(data: &[u8]) -> bool {
    let value = |byte: &u8| BECH32.iter().position(|it| it == byte).map(|at| at as u32);
    let Some(data) = data.iter().map(value).collect::<Option<Vec<u32>>>() else { return false };
    // The prefix `bc`: high bits, 0, low bits.
    let sum = [3, 3, 0, 2, 3].into_iter().chain(data).fold(1, |sum: u32, value| {
        let next = (sum & 0x1ff_ffff) << 5 ^ value;
        let on = |(at, generator): (usize, &u32)| if sum >> (25 + at) & 1 == 1 { *generator } else { 0 };
        GENERATORS.iter().enumerate().map(on).fold(next, |next, generator| next ^ generator)
    });
    ENDS.contains(&sum)
}
