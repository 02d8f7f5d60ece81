//! Leases of requests: what a client asks to stay in the cache, from the moment it is computed.

use std::time::Duration;

use tokenmill_ir::TokenId;
use tokenmill_sched::LeaseWish;

use super::{Core, Work};
use crate::request::{Lease, Leased, Request};

/// What a request asks to stay.
pub(super) struct Wanted {
    lease: Lease,
    percent: u32,
    salt: u64,
    prompt: Vec<TokenId>,
}

impl Wanted {
    pub fn of(request: Request) -> Option<Self> {
        let Request { salt, prompt, lease_percent: percent, .. } = request;
        request.lease.map(|lease| Self { lease, percent, salt, prompt })
    }
}

impl Core {
    /// A request's prompt is computed: what it asks to stay stays from now on.
    pub(super) fn keep_leased(&mut self, id: u64) {
        let Some(open) = self.requests.get_mut(&id) else { return };
        let Some(wanted) = open.wanted.take() else { return };
        let tokens = self.sched.lease(&LeaseWish {
            account: open.account,
            salt: wanted.salt,
            name: wanted.lease.name,
            tokens: &wanted.prompt,
            percent: wanted.percent,
            until_s: (self.clock)() + wanted.lease.ttl.as_secs_f64(),
        });
        if let Work::Answer(answer) = &mut open.work {
            answer.leased(tokens);
        }
    }

    /// Ends the leases whose time is over.
    pub(crate) fn end_leases(&mut self) {
        if self.sched.leases().next().is_some() {
            self.sched.end_leases((self.clock)());
        }
    }

    /// What an account, or all of them, keep in the cache.
    pub fn leases(&self, account: Option<u64>) -> Vec<Leased> {
        let now = (self.clock)();
        let own = self.sched.leases().filter(|l| account.is_none_or(|a| l.account == a));
        own.map(|l| Leased {
            tokens: l.tokens,
            left: Duration::try_from_secs_f64(l.until_s - now).unwrap_or_default(),
        })
        .collect()
    }

    /// Ends what an account, or all of them, keep in the cache; how many leases.
    pub fn give_up_leases(&mut self, account: Option<u64>) -> usize {
        self.sched.give_up_leases(account)
    }
}
