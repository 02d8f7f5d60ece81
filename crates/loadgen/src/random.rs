//! Numbers and words from a seed.

/// Words that most vocabularies have as one token.
const WORDS: &str = "the of and to in is that for it as was with be by on not he his but at are \
    this have from or had an they which one you were her all she there would their we him been has \
    when who will more no if out so said what up its about into than them can only other new some \
    could time these two may then do first any my now such like our over man me even most made \
    after also did many before must through back years where much your way well down should \
    because each just those people how too little state good very make world still own see men \
    work long get here between both life being under never day same another know while last might \
    us great old year off come since against go came right used take three";

/// A counter through a mixing function (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut mixed = Random(seed);
        Random(mixed.next() ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// Below `limit`, which is not zero.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// In (0, 1].
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Normal, by Box and Muller.
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// The words.
pub(crate) struct Words(Vec<&'static str>);

impl Words {
    pub(crate) fn new() -> Self {
        Words(WORDS.split_whitespace().collect())
    }

    pub(crate) fn one(&self, random: &mut Random) -> &'static str {
        self.0[random.below(self.0.len())]
    }

    /// So many words, each with a space before it.
    pub(crate) fn text(&self, length: u32, random: &mut Random) -> String {
        let mut text = String::new();
        for _ in 0..length {
            text.push(' ');
            text.push_str(self.one(random));
        }
        text
    }

    /// So many words in lines of twelve.
    pub(crate) fn lines(&self, length: u32, random: &mut Random) -> String {
        let mut text = String::new();
        for i in 0..length {
            match i {
                0 => {}
                i if i % 12 == 0 => text.push('\n'),
                _ => text.push(' '),
            }
            text.push_str(self.one(random));
        }
        text
    }

    /// Lines of exactly so many bytes; the last word is cut.
    pub(crate) fn bytes(&self, bytes: usize, random: &mut Random) -> String {
        let mut text = String::with_capacity(bytes + 16);
        let mut words = 0;
        while text.len() < bytes {
            if words > 0 {
                text.push(if words % 12 == 0 { '\n' } else { ' ' });
            }
            text.push_str(self.one(random));
            words += 1;
        }
        text.truncate(bytes);
        if text.ends_with([' ', '\n']) {
            text.pop();
            text.push('.');
        }
        text
    }
}
