//! SentencePiece's compiled normalisation: the length of a trie, the trie (a double array of 32-bit
//! units: github.com/s-yata/darts-clone), and the texts that its leaves point to. The library that
//! runs it indexes without looking, so everything that a text can lead it to is looked at here.

/// Most units of a trie. That of NFKC with case folding has 80 000.
const MOST_UNITS: usize = 1 << 20;
/// Units that one byte of a text chooses among: a block of the array.
const BLOCK: usize = 256;

/// Bytes of the longest text that a compiled map puts in, or what is wrong with the map.
pub(crate) fn longest(map: &[u8]) -> Result<usize, String> {
    let Some((size, rest)) = map.split_first_chunk::<4>() else {
        return Err(format!("{} bytes, too few for its first word of 4", map.len()));
    };
    // The library allocates what the first word says before it looks.
    let size = u32::from_le_bytes(*size) as usize;
    if size > rest.len() {
        return Err(format!(
            "its first word says that {size} bytes follow, but {} do: the file is damaged",
            rest.len()
        ));
    }
    let (trie, texts) = rest.split_at(size - size % 4);
    let units: Vec<u32> =
        trie.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
    let texts = std::str::from_utf8(texts).map_err(|error| format!("its texts: {error}"))?;
    walk(&units, texts)?;
    Ok(texts.split('\0').map(str::len).max().unwrap_or(0))
}

/// From where its block begins the next byte chooses: the place of a unit and this are put together
/// bit by bit.
fn offset(unit: u32) -> usize {
    (unit as usize >> 10) << ((unit & 1 << 9) >> 6)
}

/// Follows all bytes from the root.
fn walk(units: &[u32], texts: &str) -> Result<(), String> {
    let count = units.len();
    let Some(root) = units.first() else { return Err("its trie is empty".to_owned()) };
    if count > MOST_UNITS {
        return Err(format!("its trie has {count} units, more than {MOST_UNITS}"));
    }
    let mut seen = vec![false; count];
    let mut todo = vec![offset(*root)];
    while let Some(base) = todo.pop() {
        let begin = base - base % BLOCK;
        let Some(block) = units.get(begin..begin + BLOCK) else {
            return Err(format!("its trie points to unit {base} of {count}: the file is damaged"));
        };
        if std::mem::replace(&mut seen[base], true) {
            continue;
        }
        for byte in 1..BLOCK {
            let unit = block[(base ^ byte) % BLOCK];
            if unit & (1 << 31 | 0xff) != byte as u32 {
                continue;
            }
            let next = base ^ byte ^ offset(unit);
            if unit >> 8 & 1 == 1 {
                let leaf = units.get(next).map(|leaf| (leaf & !(1 << 31)) as usize);
                if leaf.is_none_or(|at| !texts.is_char_boundary(at)) {
                    return Err(format!(
                        "its trie has a leaf at unit {next} of {count} that is the beginning of \
                         none of its {} bytes of texts: the file is damaged",
                        texts.len()
                    ));
                }
            }
            todo.push(next);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map of two blocks that makes "a" the text "bc".
    fn units() -> Vec<u32> {
        let mut units = vec![1 << 31; 2 * BLOCK];
        // The root's bytes choose in the second block, as do those behind "a".
        units[0] = 256 << 10;
        units[256 ^ usize::from(b'a')] = u32::from(b'a') | 1 << 8 | 2 << 10;
        units[256 ^ usize::from(b'a') ^ 2] = 1 << 31 | 3;
        units
    }

    fn map(units: &[u32]) -> Vec<u8> {
        let mut map = (4 * units.len() as u32).to_le_bytes().to_vec();
        map.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        map.extend("é\0bc\0".as_bytes());
        map
    }

    #[test]
    fn whatever_a_text_leads_to_is_there() {
        assert_eq!(longest(&map(&units())), Ok(2));
        let leaf = 256 ^ usize::from(b'a') ^ 2;
        for (what, at, unit, told) in [
            ("a root without a block", 0, 512 << 10, "points to unit 512 of 512"),
            ("a far root", 0, u32::MAX, "points to unit"),
            ("a leaf within a letter", leaf, 1 << 31 | 1, "a leaf at unit"),
            ("a leaf behind the texts", leaf, 1 << 31 | 7, "none of its 6 bytes"),
            ("a far leaf", 256 ^ 0x61, 0x61 | 1 << 8 | 1 << 9 | 900 << 10, "a leaf at unit"),
            ("a far child", 256 ^ 0x61, 0x61 | 1 << 9 | 900 << 10, "points to unit"),
        ] {
            let mut units = units();
            units[at] = unit;
            let error = longest(&map(&units)).expect_err(what);
            assert!(error.contains(told), "{what}: {error}");
        }
        assert_eq!(longest(&[0; 4]), Err("its trie is empty".to_owned()));
        assert_eq!(longest(&map(&units()[..300])).map_err(|e| e.contains("unit 256")), Err(true));
    }
}
