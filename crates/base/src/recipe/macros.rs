//! The macros [`recipe!`](crate::recipe!) and [`choice!`](crate::choice!): one declaration per recipe table and
//! per closed set of names.

/// Declares recipe tables. Each key is declared once: documentation, type, default and, in brackets, the allowed
/// range of its number (an [`AllowedRange`](crate::recipe::AllowedRange)). Without `= default` the default of the type applies
/// (`None`, empty). The owner of the recipe checks the ranges.
///
/// A field may be `bool`, an integer, `f64`, `String`, `PathBuf`, a [`choice!`](crate::choice!) enum, another
/// recipe table, or `Option`, `Vec` and `BTreeMap<String, _>` of these.
///
/// ```
/// use fathom_base::recipe::AllowedRange::{Above0, Below1};
///
/// fathom_base::recipe! {
///     /// What the optimizer does.
///     pub struct Optimizer {
///         /// Peak learning rate.
///         pub lr: f64 [Below1] = 3e-4,
///         /// Largest global gradient norm; none does not clip.
///         pub clip: Option<f64> [Above0(1e9)] = Some(1.0),
///     }
/// }
/// assert_eq!(Optimizer::default().lr, 3e-4);
/// ```
#[macro_export]
macro_rules! recipe {
    ($(
        $(#[doc = $about:literal])*
        $vis:vis struct $name:ident {
            $( $(#[doc = $doc:literal])* $field_vis:vis $field:ident : $type:ty $([$allowed:expr])? $(= $default:expr)? ),* $(,)?
        }
    )*) => { $(
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, $crate::serde::Serialize, $crate::serde::Deserialize)]
        // No serde default: a missing key means an unset `Option`, even if its default is a value.
        #[serde(crate = "fathom_base::serde", deny_unknown_fields)]
        $vis struct $name {
            $( $(#[doc = $doc])* $field_vis $field: $type, )*
        }

        impl ::core::default::Default for $name {
            fn default() -> Self {
                Self { $( $field: $crate::recipe_default!($($default)?), )* }
            }
        }

        impl $crate::recipe::Table for $name {
            fn keys() -> ::std::vec::Vec<$crate::recipe::Key> {
                ::std::vec![ $(
                    $crate::recipe::Key::of::<$type>(::core::stringify!($field), ::core::concat!($($doc, "\n"),*))
                        $(.allowing($allowed))?,
                )* ]
            }

            fn defaults() -> ::core::result::Result<$crate::toml::Table, $crate::toml::ser::Error> {
                $crate::toml::Table::try_from(<Self as ::core::default::Default>::default())
            }

            fn from_toml(value: $crate::toml::Value) -> ::core::result::Result<Self, $crate::toml::de::Error> {
                let mut keys = $crate::recipe::Keys::of(value)?;
                let read = Self { $( $field: keys.take(::core::stringify!($field))?, )* };
                keys.end().map(|()| read)
            }
        }

        impl $crate::recipe::Field for $name {
            fn shape() -> $crate::recipe::Shape {
                $crate::recipe::Shape::table::<Self>()
            }

            fn read(value: $crate::toml::Value) -> ::core::result::Result<Self, $crate::toml::de::Error> {
                <Self as $crate::recipe::Table>::from_toml(value)
            }
        }
    )* };
}

#[doc(hidden)]
#[macro_export]
macro_rules! recipe_default {
    () => {
        ::core::default::Default::default()
    };
    ($default:expr) => {
        $default
    };
}

/// Declares an enum whose variants are written by name in recipes. The first variant is the default.
///
/// ```
/// fathom_base::choice! {
///     /// How the learning rate falls.
///     pub enum Schedule {
///         /// Half a cosine.
///         Cosine = "cosine",
///         /// A straight line.
///         Linear = "linear",
///     }
/// }
/// assert_eq!(Schedule::default().to_string(), "cosine");
/// assert_eq!("linear".parse(), Ok(Schedule::Linear));
/// ```
#[macro_export]
macro_rules! choice {
    (
        $(#[$about:meta])*
        $vis:vis enum $name:ident { $( $(#[$doc:meta])* $variant:ident = $text:literal ),* $(,)? }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name { $( $(#[$doc])* #[doc = concat!("Written `", $text, "`.")] $variant, )* }

        impl $name {
            /// Names of all variants, in declaration order.
            pub const NAMES: &'static [&'static str] = &[$($text),*];
            /// All variants, in declaration order.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// Returns the name of the variant in recipes.
            pub fn name(self) -> &'static str {
                Self::NAMES[self as usize]
            }
        }

        impl ::core::default::Default for $name {
            fn default() -> Self {
                Self::ALL[0]
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.pad(self.name())
            }
        }

        impl ::core::str::FromStr for $name {
            type Err = ::std::string::String;
            fn from_str(text: &str) -> ::core::result::Result<Self, ::std::string::String> {
                let found = Self::ALL.iter().copied().find(|v| v.name() == text);
                found.ok_or_else(|| ::std::format!("`{text}` is not one of {}", Self::NAMES.join(", ")))
            }
        }

        impl $crate::serde::Serialize for $name {
            fn serialize<S: $crate::serde::Serializer>(&self, to: S) -> ::core::result::Result<S::Ok, S::Error> {
                to.serialize_str(self.name())
            }
        }

        impl<'de> $crate::serde::Deserialize<'de> for $name {
            fn deserialize<D: $crate::serde::Deserializer<'de>>(from: D) -> ::core::result::Result<Self, D::Error> {
                let text = <::std::string::String as $crate::serde::Deserialize>::deserialize(from)?;
                text.parse().map_err($crate::serde::de::Error::custom)
            }
        }

        impl $crate::recipe::Field for $name {
            fn shape() -> $crate::recipe::Shape {
                $crate::recipe::Shape::leaf::<Self>($crate::recipe::Kind::Choice(Self::NAMES))
            }
        }
    };
}
