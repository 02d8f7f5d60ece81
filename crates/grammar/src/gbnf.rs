//! llama.cpp's GBNF, read and written anew as Lark.
pub(crate) fn to_lark(_text: &str, _bounds: &crate::Bounds) -> Result<String, crate::Refused> {
    Err(crate::Refused::syntax("grammar", "soon"))
}
