//! GGUF files taken apart into what their headers say, changed, and put together again. Written
//! after the format's description, apart from the reader under test.

use crate::{Draw, Mutant, damaged};

/// A value: its type's number and its bytes; strings and arrays as what is in them.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Plain(u32, Vec<u8>),
    Text(Vec<u8>),
    List { kind: u32, count: u64, items: Vec<Value> },
}

#[derive(Debug, Clone)]
struct Tensor {
    name: Vec<u8>,
    dims: Vec<u64>,
    dim_count: u32,
    kind: u32,
    offset: u64,
}

/// A file; `data` is what stands behind its header.
#[derive(Debug, Clone)]
pub struct File {
    pairs: Vec<(Vec<u8>, Value)>,
    tensors: Vec<Tensor>,
    pair_count: u64,
    tensor_count: u64,
    data: Vec<u8>,
}

/// Bytes of a value of each plain type.
const SIZES: [usize; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
const TEXT: u32 = 8;
const LIST: u32 = 9;

struct Cursor<'a>(&'a [u8], usize);

impl Cursor<'_> {
    fn take(&mut self, n: usize) -> Vec<u8> {
        self.1 += n;
        self.0[self.1 - n..self.1].to_vec()
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    fn text(&mut self) -> Vec<u8> {
        let len = self.u64() as usize;
        self.take(len)
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            TEXT => Value::Text(self.text()),
            LIST => {
                let (kind, count) = (self.u32(), self.u64());
                let items = (0..count).map(|_| self.value(kind)).collect();
                Value::List { kind, count, items }
            }
            kind => Value::Plain(kind, self.take(SIZES[kind as usize])),
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

impl Value {
    fn kind(&self) -> u32 {
        match self {
            Value::Plain(kind, _) => *kind,
            Value::Text(_) => TEXT,
            Value::List { .. } => LIST,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Value::Plain(_, bytes) => out.extend(bytes),
            Value::Text(text) => put_text(out, text),
            Value::List { kind, count, items } => {
                out.extend(kind.to_le_bytes());
                out.extend(count.to_le_bytes());
                items.iter().for_each(|item| item.put(out));
            }
        }
    }

    /// Other values in its place.
    fn others(&self) -> Vec<(String, Value)> {
        let mut all = Vec::new();
        match self {
            Value::Plain(kind, bytes) => {
                let mut add = |what: String, value: Value| all.push((what, value));
                for number in edges(bytes) {
                    let bytes = number.to_le_bytes()[..bytes.len()].to_vec();
                    add(format!("bits {number:#x}"), Value::Plain(*kind, bytes));
                }
                let mut wide = bytes.clone();
                wide.resize(8, 0);
                for kind in [0, 4, 5, 6, 7, 10, 11, 12] {
                    let bytes = wide[..SIZES[kind as usize]].to_vec();
                    add(format!("type {kind}"), Value::Plain(kind, bytes));
                }
                for number in [f64::NAN, -1.0, 1e30, 2.5, f64::INFINITY] {
                    let bytes = (number as f32).to_le_bytes().to_vec();
                    add(format!("the float {number}"), Value::Plain(6, bytes));
                }
                for number in [u64::MAX, 1 << 63, 1 << 32, 1 << 31] {
                    add(format!("{number}"), Value::Plain(10, number.to_le_bytes().to_vec()));
                }
                add("a text".into(), Value::Text(b"12".to_vec()));
                let items = vec![self.clone(); 3];
                add("a list".into(), Value::List { kind: *kind, count: 3, items });
            }
            Value::Text(text) => all = of_text(text),
            Value::List { kind, count, items } => {
                let mut add = |what: String, value: Value| all.push((what, value));
                let list = |n: u64, items: &[Value]| Value::List {
                    kind: *kind,
                    count: n,
                    items: items.to_vec(),
                };
                add("an empty list".into(), list(0, &[]));
                let short = items.split_last().map_or(&[][..], |(_, rest)| rest);
                add("a shorter list".into(), list(short.len() as u64, short));
                let long: Vec<Value> = items.iter().chain(items.first()).cloned().collect();
                add("a longer list".into(), list(long.len() as u64, &long));
                for n in [*count + 1, 1 << 31, 1 << 62, u64::MAX] {
                    add(format!("a list that says {n}"), list(n, items));
                }
                for at in [0, items.len() / 2, items.len().saturating_sub(1)] {
                    for (what, item) in items.get(at).map(Value::others).unwrap_or_default() {
                        if item.kind() == *kind {
                            let mut items = items.clone();
                            items[at] = item;
                            add(format!("item {at}: {what}"), list(*count, &items));
                        }
                    }
                }
                let deep = (0..6).fold(Value::Plain(4, vec![1, 0, 0, 0]), |inner, _| Value::List {
                    kind: inner.kind(),
                    count: 1,
                    items: vec![inner],
                });
                add("lists in lists".into(), deep);
            }
        }
        all
    }
}

/// Other texts in the place of one.
fn of_text(text: &[u8]) -> Vec<(String, Value)> {
    let texts = [
        ("no text", Vec::new()),
        ("a long text", b"ab ".repeat(30_000)),
        ("no UTF-8", vec![0xff, 0xc0, 0x80]),
        ("a text with zeros", b"a\0b".to_vec()),
        ("a longer text", [text, b"x"].concat()),
    ];
    let mut all: Vec<(String, Value)> =
        texts.into_iter().map(|(what, other)| (what.to_owned(), Value::Text(other))).collect();
    all.push(("a number".to_owned(), Value::Plain(4, vec![7, 0, 0, 0])));
    all
}

/// Numbers at the edges, as bits of a value, and the neighbours of the one there.
fn edges(bytes: &[u8]) -> Vec<u64> {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let old = u64::from_le_bytes(wide);
    let mut all = vec![
        0,
        1,
        2,
        3,
        5,
        9,
        255,
        4096,
        65_537,
        (1 << 31) - 1,
        1 << 31,
        u64::from(u32::MAX),
        1 << 32,
        1 << 63,
        u64::MAX,
        u64::from(f32::NAN.to_bits()),
        u64::from(f32::INFINITY.to_bits()),
        u64::from((-1.0f32).to_bits()),
        u64::from(1e-30f32.to_bits()),
        f64::NAN.to_bits(),
        old.wrapping_add(1),
        old.wrapping_sub(1),
        old.wrapping_mul(2),
        old / 2,
        old.wrapping_neg(),
    ];
    let mask = if bytes.len() == 8 { u64::MAX } else { (1 << (8 * bytes.len())) - 1 };
    all.iter_mut().for_each(|n| *n &= mask);
    all.sort_unstable();
    all.dedup();
    all.retain(|n| *n != old);
    all
}

/// Takes what a change is called, and the change.
type Add<'a> = dyn FnMut(String, &dyn Fn(&mut File)) + 'a;

impl File {
    /// Takes a valid file apart.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut c = Cursor(bytes, 8);
        let (tensor_count, pair_count) = (c.u64(), c.u64());
        let pair = |c: &mut Cursor<'_>| {
            let (key, kind) = (c.text(), c.u32());
            (key, c.value(kind))
        };
        let pairs = (0..pair_count).map(|_| pair(&mut c)).collect();
        let tensor = |c: &mut Cursor<'_>| {
            let (name, dim_count) = (c.text(), c.u32());
            let dims = (0..dim_count).map(|_| c.u64()).collect();
            Tensor { name, dims, dim_count, kind: c.u32(), offset: c.u64() }
        };
        let tensors = (0..tensor_count).map(|_| tensor(&mut c)).collect();
        let start = c.1.next_multiple_of(32);
        let data = bytes[start.min(bytes.len())..].to_vec();
        Self { pairs, tensors, pair_count, tensor_count, data }
    }

    /// Puts it together. The counts need not be true.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend(self.tensor_count.to_le_bytes());
        out.extend(self.pair_count.to_le_bytes());
        for (key, value) in &self.pairs {
            put_text(&mut out, key);
            out.extend(value.kind().to_le_bytes());
            value.put(&mut out);
        }
        for t in &self.tensors {
            put_text(&mut out, &t.name);
            out.extend(t.dim_count.to_le_bytes());
            t.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.kind.to_le_bytes());
            out.extend(t.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        out
    }

    /// Every file with one thing wrong that `keep` wants (it is asked by number, so that files that
    /// are not wanted cost nothing).
    pub fn mutants(&self, draw: &mut Draw, mut keep: impl FnMut() -> bool) -> Vec<Mutant> {
        let mut all = Vec::new();
        let mut add = |what: String, change: &dyn Fn(&mut File)| {
            if keep() {
                let mut file = self.clone();
                change(&mut file);
                all.push(Mutant { what, bytes: file.bytes() });
            }
        };
        for (i, (key, value)) in self.pairs.iter().enumerate() {
            let name = String::from_utf8_lossy(key).into_owned();
            for (what, other) in value.others() {
                add(format!("{name}: {what}"), &|f| f.pairs[i].1 = other.clone());
            }
            add(format!("{name} is absent"), &|f| {
                f.pairs.remove(i);
                f.pair_count -= 1;
            });
            add(format!("{name} twice"), &|f| {
                f.pairs.push(f.pairs[i].clone());
                f.pair_count += 1;
            });
        }
        for n in [0, 1, self.pair_count + 1, 1 << 31, 1 << 62, u64::MAX] {
            add(format!("{n} pairs"), &|f| f.pair_count = n);
            add(format!("{n} tensors"), &|f| f.tensor_count = n);
        }
        for (i, tensor) in self.tensors.iter().enumerate() {
            self.of_tensor(i, tensor, &mut add);
        }
        let head = self.bytes().len() - self.data.len();
        let bytes = self.bytes();
        all.extend(damaged(&bytes, (head, 60), draw, keep));
        all
    }

    fn of_tensor(&self, i: usize, tensor: &Tensor, add: &mut Add<'_>) {
        let name = String::from_utf8_lossy(&tensor.name).into_owned();
        let last = self.data.len() as u64;
        for axis in 0..tensor.dims.len() {
            for n in edges(&tensor.dims[axis].to_le_bytes()) {
                add(format!("{name}: axis {axis} = {n}"), &|f| f.tensors[i].dims[axis] = n);
            }
        }
        add(format!("{name}: axes turned"), &|f| f.tensors[i].dims.reverse());
        add(format!("{name}: an axis more"), &|f| {
            f.tensors[i].dims.push(1);
            f.tensors[i].dim_count += 1;
        });
        add(format!("{name}: one axis"), &|f| {
            let all = f.tensors[i].dims.iter().product();
            (f.tensors[i].dims, f.tensors[i].dim_count) = (vec![all], 1);
        });
        for n in [0, 5, 255, u32::MAX] {
            add(format!("{name}: {n} axes"), &|f| f.tensors[i].dim_count = n);
        }
        for kind in [0, 1, 2, 8, 10, 14, 16, 24, 27, 30, 34, 39, 99, u32::MAX] {
            add(format!("{name}: type {kind}"), &|f| f.tensors[i].kind = kind);
        }
        for n in [0, 1, 32, last - last % 32, last, u64::MAX - 31, (u64::MAX - last) & !31] {
            add(format!("{name}: offset {n}"), &|f| f.tensors[i].offset = n);
        }
        add(format!("{name} is absent"), &|f| {
            f.tensors.remove(i);
            f.tensor_count -= 1;
        });
        add(format!("{name} twice"), &|f| {
            f.tensors.push(f.tensors[i].clone());
            f.tensor_count += 1;
        });
        add(format!("{name} under another name"), &|f| f.tensors[i].name.push(b'x'));
    }
}
