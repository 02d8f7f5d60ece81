//! What the writers make is what the readers read.

use std::path::Path;

use proptest::prelude::*;
use tokenmill_files::write::{TensorHeader, write_gguf, write_safetensors};
use tokenmill_files::{gguf, safetensors};
use tokenmill_ir::{Meta, MetaValue};
use tokenmill_quant::{FORMATS, FormatId};

/// A tensor and its bytes.
type Tensor = (TensorHeader, Vec<u8>);

fn tensor(name: &str, format: FormatId, shape: &[u64]) -> Tensor {
    let header = TensorHeader { name: name.to_owned(), format, shape: shape.to_vec() };
    let len = header.len_bytes().unwrap();
    let bytes = (0..len).map(|i| (i * 31 + name.len() as u64) as u8).collect();
    (header, bytes)
}

fn gguf_bytes(meta: &Meta, tensors: &[Tensor]) -> std::io::Result<Vec<u8>> {
    let headers: Vec<TensorHeader> = tensors.iter().map(|(h, _)| h.clone()).collect();
    let (mut out, mut bytes) = (Vec::new(), tensors.iter().map(|(_, b)| b));
    write_gguf(&mut out, meta, &headers, |_, out| out.write_all(bytes.next().unwrap()))?;
    Ok(out)
}

fn safetensors_bytes(tensors: &[Tensor]) -> std::io::Result<Vec<u8>> {
    let headers: Vec<TensorHeader> = tensors.iter().map(|(h, _)| h.clone()).collect();
    let (mut out, mut bytes) = (Vec::new(), tensors.iter().map(|(_, b)| b));
    write_safetensors(&mut out, &headers, |_, out| out.write_all(bytes.next().unwrap()))?;
    Ok(out)
}

/// Compares an index with what was written, byte for byte.
fn check(read: &[tokenmill_ir::TensorInfo], file: &[u8], wrote: &[Tensor]) {
    assert_eq!(read.len(), wrote.len());
    for (info, (header, bytes)) in read.iter().zip(wrote) {
        assert_eq!(
            (&info.name, info.format, &info.shape),
            (&header.name, header.format, &header.shape)
        );
        let start = info.extent.offset as usize;
        assert_eq!(&file[start..start + info.extent.len as usize], bytes, "{}", info.name);
    }
}

#[test]
fn every_format_goes_through_gguf() {
    let tensors: Vec<Tensor> = FORMATS
        .iter()
        .filter(|f| f.ggml_type.is_some())
        .map(|f| tensor(f.name, f.id, &[2, 3, 2 * f.block_weights as u64]))
        .collect();
    let file = gguf_bytes(&Meta::new(), &tensors).unwrap();
    let read = gguf::parse(Path::new("f"), &file, 0).unwrap();
    assert_eq!(read.version, 3);
    check(&read.tensors, &file, &tensors);
}

#[test]
fn the_safetensors_crate_reads_what_is_written_and_the_other_way() {
    let formats = [FormatId::F32, FormatId::BF16, FormatId::I64, FormatId::U8, FormatId::F16];
    let tensors: Vec<Tensor> = formats
        .iter()
        .enumerate()
        .map(|(i, &f)| tensor(&format!("t{i} \"quoted\" ü"), f, &[3, i as u64 + 1]))
        .chain([tensor("scalar", FormatId::F32, &[]), tensor("none", FormatId::F32, &[0, 4])])
        .collect();
    let file = safetensors_bytes(&tensors).unwrap();
    check(&safetensors::parse(Path::new("f"), &file, 0).unwrap(), &file, &tensors);
    let theirs = ::safetensors::SafeTensors::deserialize(&file).unwrap();
    for (header, bytes) in &tensors {
        assert_eq!(theirs.tensor(&header.name).unwrap().data(), bytes);
    }
    let views = tensors.iter().map(|(h, _)| (h.name.as_str(), theirs.tensor(&h.name).unwrap()));
    let file = ::safetensors::serialize(views, None).unwrap();
    let mut ours = safetensors::parse(Path::new("f"), &file, 0).unwrap();
    let order = |name: &str| tensors.iter().position(|(h, _)| h.name == name);
    ours.sort_by_key(|t| order(&t.name));
    check(&ours, &file, &tensors);
}

#[test]
fn what_the_containers_cannot_hold_is_refused() {
    let meta = |key: &str, value: MetaValue| {
        let mut meta = Meta::new();
        meta.insert(key.to_owned(), value);
        meta
    };
    for bad in [
        meta("null", MetaValue::Null),
        meta("map", MetaValue::Map(Box::default())),
        meta("mixed", MetaValue::List(vec![MetaValue::Bool(true), MetaValue::Int(1)])),
        meta("wide", MetaValue::List(vec![MetaValue::Uint(u64::MAX), MetaValue::Int(-1)])),
        meta("general.alignment", MetaValue::Int(64)),
    ] {
        assert!(gguf_bytes(&bad, &[]).is_err(), "{bad:?}");
    }
    let odd = |format, shape: &[u64]| {
        let header = TensorHeader { name: "t".to_owned(), format, shape: shape.to_vec() };
        (header, Vec::new())
    };
    for bad in [
        odd(FormatId::Q4_0, &[1, 31]),
        odd(FormatId::F32, &[0]),
        odd(FormatId::F32, &[]),
        odd(FormatId::F32, &[1; 5]),
        odd(FormatId::F32, &[u64::MAX, 2]),
        odd(FormatId::U8, &[4]),
        odd(FormatId::F32, &[1]), // no bytes are written for it
    ] {
        assert!(gguf_bytes(&Meta::new(), std::slice::from_ref(&bad)).is_err(), "{:?}", bad.0);
    }
    assert!(safetensors_bytes(&[tensor("q", FormatId::Q8_0, &[1, 32])]).is_err());
    let twice = [tensor("t", FormatId::F32, &[1]), tensor("t", FormatId::F32, &[1])];
    assert!(safetensors_bytes(&twice).is_err());
}

/// Any value that GGUF can hold, in the form the reader gives it back.
fn meta_value() -> impl Strategy<Value = MetaValue> {
    let scalar = prop_oneof![
        any::<bool>().prop_map(MetaValue::Bool),
        any::<i64>().prop_map(MetaValue::Int),
        any::<u32>().prop_map(|u| MetaValue::Int(u.into())),
        any::<i32>().prop_map(|i| MetaValue::Int(i.into())),
        (1 << 63..=u64::MAX).prop_map(MetaValue::Uint),
        any::<f64>().prop_filter("NaN is not itself", |f| !f.is_nan()).prop_map(MetaValue::Float),
        "\\PC{0,12}".prop_map(MetaValue::Str),
    ];
    let lists = prop_oneof![
        proptest::collection::vec(any::<i64>().prop_map(MetaValue::Int), 0..5),
        proptest::collection::vec(
            any::<u64>()
                .prop_map(|u| { i64::try_from(u).map_or(MetaValue::Uint(u), MetaValue::Int) }),
            0..5
        ),
        proptest::collection::vec((-1.0..1.0).prop_map(MetaValue::Float), 0..5),
        proptest::collection::vec("[a-z]{0,4}".prop_map(MetaValue::Str), 0..5),
    ]
    .prop_map(MetaValue::List);
    let nested = proptest::collection::vec(lists.clone(), 0..3).prop_map(MetaValue::List);
    prop_oneof![4 => scalar, 2 => lists, 1 => nested]
}

proptest! {
    #[test]
    fn metadata_survives_gguf(
        pairs in proptest::collection::vec(("[a-z.]{0,9}", meta_value()), 0..8),
    ) {
        let mut meta = Meta::new();
        for (i, (key, value)) in pairs.into_iter().enumerate() {
            meta.insert(format!("{i}{key}"), value);
        }
        let file = gguf_bytes(&meta, &[tensor("t", FormatId::F32, &[3])]).unwrap();
        let read = gguf::parse(Path::new("f"), &file, 0).unwrap();
        prop_assert_eq!(read.meta, meta);
    }
}
