//! The canonical form of anything that can be serialized, written without a tree in between:
//! a submission digests each of its steps. It is the form of the tree, byte for byte.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::de::value::Error;
use serde::ser::{self, Error as _, Serialize, Serializer};
use serde_json::Value;

use super::{by_utf16, write_float, write_string};

/// Writes the canonical form. Fails as `serde_json` does: where a key of a map is no text, number
/// or flag, or where the value itself refuses.
pub(super) fn write(out: &mut String, value: &impl Serialize) -> Result<(), Error> {
    value.serialize(Direct { out })
}

struct Direct<'o> {
    out: &'o mut String,
}

impl<'o> Direct<'o> {
    fn plain(self, text: impl std::fmt::Display) -> Result<(), Error> {
        write!(self.out, "{text}").map_err(Error::custom)
    }

    /// Begins a list; of a variant with a name, within an object of that one member.
    fn list(self, variant: Option<&str>) -> List<'o> {
        let close = open_variant(self.out, variant, ("]", "]}"));
        self.out.push('[');
        List { out: self.out, first: true, close }
    }

    fn object(self, variant: Option<&str>) -> Object<'o> {
        let close = open_variant(self.out, variant, ("}", "}}"));
        self.out.push('{');
        let start = self.out.len();
        Object { out: self.out, start, members: Vec::new(), close }
    }
}

fn open_variant(
    out: &mut String,
    variant: Option<&str>,
    (bare, named): (&'static str, &'static str),
) -> &'static str {
    let Some(variant) = variant else { return bare };
    out.push('{');
    write_string(out, variant);
    out.push(':');
    named
}

/// What is written as Rust displays it.
macro_rules! as_written {
    ($($method:ident: $type:ty),* $(,)?) => {
        $(fn $method(self, plain: $type) -> Result<(), Error> {
            self.plain(plain)
        })*
    };
}

impl<'o> Serializer for Direct<'o> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = List<'o>;
    type SerializeTuple = List<'o>;
    type SerializeTupleStruct = List<'o>;
    type SerializeTupleVariant = List<'o>;
    type SerializeMap = Object<'o>;
    type SerializeStruct = Object<'o>;
    type SerializeStructVariant = Object<'o>;

    as_written! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32,
        serialize_i64: i64, serialize_u8: u8, serialize_u16: u16, serialize_u32: u32,
        serialize_u64: u64,
    }

    fn serialize_f32(self, number: f32) -> Result<(), Error> {
        self.serialize_f64(f64::from(number))
    }

    fn serialize_f64(self, number: f64) -> Result<(), Error> {
        match number.is_finite() {
            true => write_float(self.out, number),
            false => self.out.push_str("null"),
        }
        Ok(())
    }

    fn serialize_char(self, letter: char) -> Result<(), Error> {
        self.serialize_str(letter.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, text: &str) -> Result<(), Error> {
        write_string(self.out, text);
        Ok(())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), Error> {
        self.collect_seq(bytes)
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.plain("null")
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), Error> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        let close = open_variant(self.out, Some(variant), ("", "}"));
        value.serialize(Direct { out: self.out })?;
        self.out.push_str(close);
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<List<'o>, Error> {
        Ok(self.list(None))
    }

    fn serialize_tuple(self, _: usize) -> Result<List<'o>, Error> {
        Ok(self.list(None))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<List<'o>, Error> {
        Ok(self.list(None))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<List<'o>, Error> {
        Ok(self.list(Some(variant)))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Object<'o>, Error> {
        Ok(self.object(None))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Object<'o>, Error> {
        Ok(self.object(None))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Object<'o>, Error> {
        Ok(self.object(Some(variant)))
    }
}

/// An array on its way.
struct List<'o> {
    out: &'o mut String,
    first: bool,
    close: &'static str,
}

impl List<'_> {
    fn item<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), Error> {
        if !std::mem::take(&mut self.first) {
            self.out.push(',');
        }
        item.serialize(Direct { out: self.out })
    }

    fn close(self) -> Result<(), Error> {
        self.out.push_str(self.close);
        Ok(())
    }
}

/// An object on its way: its members as they come, put in order at its end.
struct Object<'o> {
    out: &'o mut String,
    start: usize,
    members: Vec<Member>,
    close: &'static str,
}

struct Member {
    key: Cow<'static, str>,
    /// Where its text begins in that of the object, without a comma, and where it ends.
    from: usize,
    to: usize,
}

impl Object<'_> {
    fn key(&mut self, key: Cow<'static, str>) {
        if !self.members.is_empty() {
            self.out.push(',');
        }
        let from = self.out.len() - self.start;
        write_string(self.out, &key);
        self.out.push(':');
        self.members.push(Member { key, from, to: from });
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(Direct { out: self.out })?;
        let to = self.out.len() - self.start;
        let member = self.members.last_mut().ok_or_else(|| Error::custom("a value has a key"))?;
        member.to = to;
        Ok(())
    }

    fn close(mut self) -> Result<(), Error> {
        let in_order = |pair: &[Member]| by_utf16(&pair[0].key, &pair[1].key).is_lt();
        if !self.members.windows(2).all(in_order) {
            let written = self.out.split_off(self.start);
            // The last of two members of one name counts, as in a tree.
            self.members.sort_by(|a, b| by_utf16(&a.key, &b.key));
            let mut members = self.members.into_iter().peekable();
            let mut first = true;
            while let Some(member) = members.next() {
                if members.peek().is_some_and(|next| next.key == member.key) {
                    continue;
                }
                if !std::mem::take(&mut first) {
                    self.out.push(',');
                }
                self.out.push_str(&written[member.from..member.to]);
            }
        }
        self.out.push_str(self.close);
        Ok(())
    }
}

/// All that is written as an array differs only in what its methods are called.
macro_rules! as_list {
    ($($kind:ident: $method:ident),*) => {
        $(impl ser::$kind for List<'_> {
            type Ok = ();
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), Error> {
                self.item(item)
            }

            fn end(self) -> Result<(), Error> {
                self.close()
            }
        })*
    };
}

as_list! {
    SerializeSeq: serialize_element, SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field, SerializeTupleVariant: serialize_field
}

impl ser::SerializeMap for Object<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        match serde_json::to_value(key).map_err(Error::custom)? {
            Value::String(text) => self.key(text.into()),
            Value::Number(number) => self.key(number.to_string().into()),
            Value::Bool(flag) => self.key(flag.to_string().into()),
            _ => return Err(Error::custom("expected text as the key of a member")),
        }
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.value(value)
    }

    fn end(self) -> Result<(), Error> {
        self.close()
    }
}

/// What has named members.
macro_rules! as_object {
    ($($kind:ident),*) => {
        $(impl ser::$kind for Object<'_> {
            type Ok = ();
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Result<(), Error> {
                self.key(key.into());
                self.value(value)
            }

            fn end(self) -> Result<(), Error> {
                self.close()
            }
        })*
    };
}

as_object! { SerializeStruct, SerializeStructVariant }
