//! Memory of a cache, which grows and shrinks: pages under addresses that stay. Where a GPU has no
//! such addresses it moves.

use std::sync::Arc;

use crate::driver::{Driver, DriverError, Lane, Memory};

/// Memory of so many bytes, of at most so many.
#[derive(Debug)]
pub(crate) struct Space {
    bytes: u64,
    most: u64,
    place: Place,
}

enum Place {
    Pages(Pages),
    Whole(Arc<dyn Driver>, Memory),
}

/// Addresses, the first of which have memory.
struct Pages {
    driver: Arc<dyn Driver>,
    address: u64,
    /// Bytes of addresses, of a page, and pages there are.
    reserved: u64,
    page: u64,
    count: u64,
    /// Memory that would not be released when it was mapped.
    unreleased: Vec<u64>,
}

impl Space {
    /// Room for `most` bytes, and no memory yet.
    pub fn new(driver: &Arc<dyn Driver>, most: u64) -> Result<Self, DriverError> {
        let (own, page) = (Arc::clone(driver), driver.page().max(1));
        let reserved = most.next_multiple_of(page);
        let place = if driver.has_spaces() && reserved > 0 {
            let address = driver.reserve(reserved)?;
            let unreleased = Vec::new();
            Place::Pages(Pages { driver: own, address, reserved, page, count: 0, unreleased })
        } else {
            Place::Whole(own, Memory::new(driver, 0)?)
        };
        Ok(Self { bytes: 0, most, place })
    }

    /// Where it begins; the same as long as this lives, unless [`moves`](Self::moves).
    pub fn address(&self) -> u64 {
        match &self.place {
            Place::Pages(pages) => pages.address,
            Place::Whole(_, memory) => memory.address(),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is elsewhere after it was resized.
    pub fn moves(&self) -> bool {
        self.most > 0 && matches!(self.place, Place::Whole(..))
    }

    /// Has so many bytes from now on, the first as they were and all others 0. Where that fails
    /// it is as before, or as if that had been less. A lane brings the zeros.
    pub fn resize(&mut self, bytes: u64, lane: Lane) -> Result<(), DriverError> {
        let kept = self.bytes.min(bytes);
        match &mut self.place {
            Place::Pages(pages) => {
                let before = pages.count;
                let resized = pages.resize(bytes);
                self.bytes = self.bytes.min(pages.count * pages.page);
                resized?;
                if bytes > kept {
                    let zeroed = pages.driver.zero(lane, pages.address + kept, bytes - kept);
                    zeroed.or_else(|e| pages.shrink(before).and(Err(e)))?;
                }
            }
            Place::Whole(_, _) if self.bytes == bytes => {}
            Place::Whole(driver, memory) => {
                let new = Memory::new(driver, bytes)?;
                if kept > 0 {
                    driver.copy(memory.address(), new.address(), kept)?;
                }
                if bytes > kept {
                    driver.zero(lane, new.address() + kept, bytes - kept)?;
                }
                *memory = new;
            }
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Pages {
    fn resize(&mut self, bytes: u64) -> Result<(), DriverError> {
        let (before, wanted) = (self.count, bytes.div_ceil(self.page));
        if wanted <= before {
            return self.shrink(wanted);
        }
        if wanted * self.page > self.reserved {
            return Err(DriverError::Failed(format!("{bytes} bytes of {}", self.reserved)));
        }
        let grown = self.grow(wanted);
        // (What the first error was is what is told.)
        grown.or_else(|e| self.shrink(before).and(Err(e)))
    }

    /// Up to so many pages, nothing in them.
    fn grow(&mut self, wanted: u64) -> Result<(), DriverError> {
        let first = self.count;
        while self.count < wanted {
            let memory = self.driver.create(self.page)?;
            let mapped = self.driver.map(self.at(self.count), self.page, memory);
            // (It goes with the addresses that have it, or now.)
            let released = self.driver.release(memory);
            self.unreleased.extend(released.is_err().then_some(memory));
            self.count += u64::from(mapped.is_ok());
            mapped.and(released)?;
        }
        self.driver.allow(self.at(first), (wanted - first) * self.page)
    }

    /// Down to so many pages. (A page goes as it was mapped: alone.)
    fn shrink(&mut self, wanted: u64) -> Result<(), DriverError> {
        while self.count > wanted {
            self.driver.unmap(self.at(self.count - 1), self.page)?;
            self.count -= 1;
        }
        self.unreleased.retain(|memory| self.driver.release(*memory).is_err());
        Ok(())
    }

    fn at(&self, page: u64) -> u64 {
        self.address + page * self.page
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // (Where pages stay, so do their addresses.)
        if self.shrink(0).is_ok() {
            self.driver.unreserve(self.address, self.reserved);
        }
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pages(p) => write!(f, "{} pages of {} at {:#x}", p.count, p.page, p.address),
            Self::Whole(_, memory) => memory.fmt(f),
        }
    }
}
