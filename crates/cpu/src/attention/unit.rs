//! The kernel families: each is the same set of functions compiled for its instruction set.

use super::bias::{self, BiasBlock};
use super::mask::{self, Bits};
use super::pack::{self, Both, Pack, Turn, Unpack};
use super::pages::{self, PackedRows};
use super::product::{self, Product};
use super::simd::Simd;
use super::simd::portable::Portable;
use super::softmax::{self, Delta, Finish, Gradient, Resume, Softmax};

#[cfg(target_arch = "x86_64")]
use super::amx;
#[cfg(target_arch = "x86_64")]
use super::simd::{avx2::Avx2, avx512::Avx512};

/// One kernel family. The functions are those of the same name in the sibling modules.
///
/// # Safety
/// See the named functions; in addition, the processor has the family's instruction set. On each thread, `begin`
/// precedes and `end` follows any `product`.
pub unsafe trait Unit: 'static {
    /// Elements in a word of an operand.
    const STEP: usize;
    /// Row granularity of products (rows past the end may hold anything).
    const ROWS: usize;
    /// Granularity in words of a product's depth.
    const DEPTH: usize;

    unsafe fn begin() {}
    unsafe fn end() {}
    unsafe fn product(p: &Product);
    unsafe fn rows(p: &Pack);
    unsafe fn across(p: &Pack);
    unsafe fn along(p: &Pack);
    unsafe fn both(p: &Both);
    unsafe fn turn(p: &Turn);
    unsafe fn unpack(p: &Unpack);
    unsafe fn unpack_turned(p: &Unpack);
    unsafe fn softmax(p: &Softmax);
    unsafe fn resume(p: &Resume);
    unsafe fn finish(p: &Finish);
    unsafe fn gradient(p: &Gradient);
    unsafe fn delta(p: &Delta);
    unsafe fn bits(p: &Bits<'_>);
    unsafe fn unpack_pages(p: &PackedRows);
    unsafe fn add_bias(p: &BiasBlock<'_>);
    unsafe fn sum_bias(p: &BiasBlock<'_>);
}

/// Defines functions that call the generic ones under an attribute, `[inline]` or `[target_feature(..)]`.
macro_rules! functions {
    ($attribute:tt $($name:ident($args:ty) = $body:path;)*) => {
        $(
            # $attribute
            unsafe fn $name(p: &$args) {
                // SAFETY: the caller keeps the contract of the called function, and the processor has this family's
                // instruction set.
                unsafe { $body(p) }
            }
        )*
    };
}

macro_rules! unit {
    ($(#[$doc:meta])* $unit:ident, $simd:ty, $attribute:tt, $granule:expr, { $($own:tt)* }) => {
        $(#[$doc])*
        pub struct $unit;
        // SAFETY: every function is the generic one, compiled with the features that `$simd` needs.
        unsafe impl Unit for $unit {
            const STEP: usize = if <$simd as Simd>::PAIRS { 2 } else { 1 };
            const ROWS: usize = $granule.0;
            const DEPTH: usize = $granule.1;
            $($own)*
            functions! { $attribute
                rows(Pack) = pack::rows::<$simd>;
                across(Pack) = pack::across::<$simd>;
                along(Pack) = pack::along::<$simd>;
                both(Both) = pack::both::<$simd>;
                turn(Turn) = pack::turn::<$simd>;
                unpack(Unpack) = pack::unpack::<$simd>;
                unpack_turned(Unpack) = pack::unpack_turned::<$simd>;
                softmax(Softmax) = softmax::softmax::<$simd>;
                resume(Resume) = softmax::resume::<$simd>;
                finish(Finish) = softmax::finish::<$simd>;
                gradient(Gradient) = softmax::gradient::<$simd>;
                delta(Delta) = softmax::delta::<$simd>;
                bits(Bits<'_>) = mask::bits::<$simd>;
                unpack_pages(PackedRows) = pages::unpack::<$simd>;
                add_bias(BiasBlock<'_>) = bias::add::<$simd>;
                sum_bias(BiasBlock<'_>) = bias::sum::<$simd>;
            }
        }
    };
    // A family that also uses the generic product.
    ($(#[$doc:meta])* $unit:ident, $simd:ty, $attribute:tt) => {
        unit!($(#[$doc])* $unit, $simd, $attribute, (1, 1), {
            functions! { $attribute product(Product) = product::product::<$simd>; }
        });
    };
}

unit!(
    /// Plain Rust, f32 words.
    PortableUnit, Portable, [inline]
);

#[cfg(target_arch = "x86_64")]
unit!(
    /// AVX2 and FMA, f32 words.
    Avx2Unit, Avx2, [target_feature(enable = "avx2,fma")]
);

#[cfg(target_arch = "x86_64")]
unit!(
    /// AVX-512, f32 words.
    Avx512Unit, Avx512<false>, [target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
);

#[cfg(target_arch = "x86_64")]
unit!(
    /// AVX-512 with `vdpbf16ps`, words of two bf16.
    Avx512Bf16Unit,
    Avx512<true>,
    [target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")]
);

#[cfg(target_arch = "x86_64")]
unit!(
    /// AMX tiles for the products, AVX-512 with BF16 for the rest, words of two bf16.
    AmxUnit,
    Avx512<true>,
    [target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")],
    (32, 16),
    {
        unsafe fn begin() {
            // SAFETY: this family is chosen only if `isa` obtained the permission for tiles.
            unsafe { amx::begin() }
        }
        unsafe fn end() {
            // SAFETY: as above.
            unsafe { amx::end() }
        }
        functions! { [inline] product(Product) = amx::product; }
    }
);

#[cfg(test)]
pub mod checked {
    //! Families that accept products only in the granules of AMX tiles, and check that: the block structure of
    //! `AmxUnit` on any processor.

    use super::*;

    /// The generic product after a check of the granules; also computes the padded rows, as tiles do.
    unsafe fn product<S: Simd>(p: &Product) {
        assert!(p.depth > 0 && p.depth.is_multiple_of(16), "a tile is 16 words deep, not {}", p.depth);
        assert!([p.lda, p.ldb, p.ldc].iter().all(|ld| ld.is_multiple_of(16)), "a tile row is a cache line");
        assert!(p.a.cast::<u8>().addr().is_multiple_of(64) && p.b.cast::<u8>().addr().is_multiple_of(64));
        let rows = p.rows.next_multiple_of(32);
        // SAFETY: the contract of `amx::product`, which gives room for whole tiles.
        unsafe { product::product::<S>(&Product { rows, ..*p }) }
    }

    unit!(
        /// f32 words in tiles.
        TiledPortable, Portable, [inline], (32, 16),
        { functions! { [inline] product(Product) = product::<Portable>; } }
    );

    #[cfg(target_arch = "x86_64")]
    unit!(
        /// bf16 words in tiles: `AmxUnit` but for the instructions of the product.
        TiledBf16,
        Avx512<true>,
        [target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")],
        (32, 16),
        {
            functions! {
                [target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")]
                product(Product) = product::<Avx512<true>>;
            }
        }
    );
}
