//! Enums whose values have one fixed text, on the wire and in the database alike.

/// The text is not one of the allowed values. The error contains only its beginning, because it may come from
/// anyone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} `{given}`: expected one of {}", allowed.join(", "))]
pub struct UnknownWord {
    /// The name of the expected vocabulary, such as "session status".
    pub kind: &'static str,
    /// The beginning of the rejected text.
    pub given: String,
    /// All allowed values.
    pub allowed: &'static [&'static str],
}

impl UnknownWord {
    pub(crate) fn new(kind: &'static str, given: &str, allowed: &'static [&'static str]) -> Self {
        const MAX_SHOWN: usize = 40;
        Self { kind, given: given.chars().take(MAX_SHOWN).collect(), allowed }
    }
}

macro_rules! string_enums {
    ($(
        $(#[$doc:meta])*
        $name:ident as $kind:literal { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }
    )+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// All values in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
            const TEXTS: &[&str] = &[$($text),+];

            /// The text of this value on the wire and in the database.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::UnknownWord;

            fn from_str(text: &str) -> Result<Self, $crate::UnknownWord> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    other => Err($crate::UnknownWord::new($kind, other, Self::TEXTS)),
                }
            }
        }

        impl TryFrom<&str> for $name {
            type Error = $crate::UnknownWord;

            fn try_from(text: &str) -> Result<Self, $crate::UnknownWord> {
                text.parse()
            }
        }

        impl TryFrom<String> for $name {
            type Error = $crate::UnknownWord;

            fn try_from(text: String) -> Result<Self, $crate::UnknownWord> {
                text.parse()
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::schema::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .enum_values(Some(Self::TEXTS.iter().copied()))
                    .into()
            }
        }

        impl utoipa::ToSchema for $name {}
    )+};
}

pub(crate) use string_enums;
