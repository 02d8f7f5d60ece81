//! Fair shares. Every sequence is on somebody's account; among accounts with work to do, the one
//! that was served least comes first. Who was away is not owed the time.

use std::collections::HashMap;

#[derive(Debug, Clone, Copy, Default)]
struct Account {
    key: u64,
    /// Tokens computed and output rows, counted from `Accounts::now` at its first sequence.
    served: u64,
    /// Sequences known.
    sequences: u32,
    /// Of those, running.
    places: u32,
    /// Urgent ones let in before older ones.
    passings: u32,
}

/// Accounts with sequences, by index.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    list: Vec<Account>,
    spare: Vec<u32>,
    by_key: HashMap<u64, u32>,
    /// Served at least by the account that was last let in: where new ones begin.
    now: u64,
}

impl Accounts {
    /// One more sequence for that key; the account's index.
    pub fn open(&mut self, key: u64) -> u32 {
        let (list, spare, now) = (&mut self.list, &mut self.spare, self.now);
        let at = *self.by_key.entry(key).or_insert_with(|| {
            spare.pop().unwrap_or_else(|| {
                list.push(Account::default());
                list.len() as u32 - 1
            })
        });
        let account = &mut list[at as usize];
        if account.sequences == 0 {
            *account = Account { key, served: now, ..Account::default() };
        }
        account.sequences += 1;
        at
    }

    /// One sequence less; the account ends with the last.
    pub fn close(&mut self, at: u32) {
        let account = &mut self.list[at as usize];
        account.sequences -= 1;
        if account.sequences == 0 {
            self.by_key.remove(&account.key);
            self.spare.push(at);
        }
    }

    /// A sequence starts to run.
    pub fn enter(&mut self, at: u32) {
        let account = &mut self.list[at as usize];
        account.places += 1;
        self.now = self.now.max(account.served);
    }

    /// A sequence runs no longer.
    pub fn leave(&mut self, at: u32) {
        self.list[at as usize].places -= 1;
    }

    /// One more urgent sequence came before an older one; how many did.
    pub fn count_passing(&mut self, at: u32) -> u32 {
        let account = &mut self.list[at as usize];
        account.passings += 1;
        account.passings
    }

    /// The oldest one is passed no more.
    pub fn forget_passings(&mut self, at: u32) {
        self.list[at as usize].passings = 0;
    }

    /// Work done for an account.
    pub fn charge(&mut self, at: u32, work: u32) {
        self.list[at as usize].served += u64::from(work);
    }

    pub fn served(&self, at: u32) -> u64 {
        self.list[at as usize].served
    }

    pub fn places(&self, at: u32) -> u32 {
        self.list[at as usize].places
    }

    /// Asserts that the counts are those of the sequences: (account, whether it runs).
    pub fn check(&self, sequences: impl Iterator<Item = (u32, bool)>) {
        let mut found = vec![(0, 0); self.list.len()];
        for (at, runs) in sequences {
            found[at as usize].0 += 1;
            found[at as usize].1 += u32::from(runs);
        }
        for (account, found) in self.list.iter().zip(&found) {
            assert_eq!((account.sequences, account.places), *found, "account {}", account.key);
        }
        let open = found.iter().filter(|f| f.0 > 0).count();
        assert_eq!(open, self.by_key.len(), "an account ends with its last sequence");
    }
}
