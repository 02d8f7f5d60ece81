//! Memory of the CPU device: large zeroed buffers, and slices that threads fill together.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Size of a large page.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// The system has no room for a buffer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot get {bytes} bytes of memory: {reason}")]
pub struct OutOfMemory {
    /// Bytes requested.
    pub bytes: usize,
    /// What the system said.
    pub reason: String,
}

/// Zeroed bytes on pages of their own, aligned to 2 MiB, large pages where the system has
/// them. A page comes to be when it is first touched, near the core that touches it.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    /// The whole mapping.
    mapping: (NonNull<u8>, usize),
}

// SAFETY: a buffer owns its memory, like a boxed slice.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of `len` zero bytes, none of them touched yet.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the address space or the commit limit has no room.
    pub fn zeroed(len: usize) -> Result<Buffer, OutOfMemory> {
        let fail = |reason: String| OutOfMemory { bytes: len, reason };
        let whole = len
            .max(1)
            .checked_next_multiple_of(HUGE_PAGE)
            .and_then(|len| len.checked_add(HUGE_PAGE))
            .filter(|&len| len <= isize::MAX as usize)
            .ok_or_else(|| fail("larger than the address space".to_owned()))?;
        let base = map(whole).map_err(fail)?;
        let skip = base.as_ptr().align_offset(HUGE_PAGE);
        // SAFETY: the mapping is a large page longer than the rounded length.
        let start = unsafe { base.add(skip) };
        prefer_large_pages(start, whole - HUGE_PAGE);
        Ok(Buffer { start, len, mapping: (base, whole) })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes from `start` are mapped, zeroed, and ours.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to change.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        unmap(self.mapping.0, self.mapping.1);
    }
}

/// Asks memory for `len` numbers that will soon be read. They may be any: nothing is read here.
#[inline(always)]
pub(crate) fn prefetch(numbers: *const f32, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..len).step_by(16) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(numbers.wrapping_add(at).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (numbers, len);
}

/// Asks memory for a line that will soon be written. (The intrinsic becomes one for reading, unless all code is compiled
/// for processors that have this one; on others it does nothing.)
#[inline(always)]
pub(crate) fn prefetch_to_write<T>(line: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch may name any address.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

#[cfg(unix)]
fn map(len: usize) -> Result<NonNull<u8>, String> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh anonymous mapping touches no memory that exists.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    match NonNull::new(at.cast::<u8>()) {
        Some(start) if at != libc::MAP_FAILED => Ok(start),
        _ => Err(std::io::Error::last_os_error().to_string()),
    }
}

#[cfg(unix)]
fn unmap(start: NonNull<u8>, len: usize) {
    // SAFETY: exactly the mapping made by `map`, which nothing refers to any more.
    unsafe { libc::munmap(start.as_ptr().cast(), len) };
}

#[cfg(not(unix))]
fn layout_of(len: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(len, 4096).expect("checked by the caller")
}

#[cfg(not(unix))]
fn map(len: usize) -> Result<NonNull<u8>, String> {
    // SAFETY: `len` is not zero.
    let at = unsafe { std::alloc::alloc_zeroed(layout_of(len)) };
    NonNull::new(at).ok_or_else(|| "out of memory".to_owned())
}

#[cfg(not(unix))]
fn unmap(start: NonNull<u8>, len: usize) {
    // SAFETY: allocated by `map` with the same layout.
    unsafe { std::alloc::dealloc(start.as_ptr(), layout_of(len)) };
}

/// Zeroes memory of a [`Buffer`], and gives the whole pages in it back to the system.
///
/// # Safety
/// `len` bytes from `start` lie in a buffer, and nobody else uses them.
pub(crate) unsafe fn forget(start: *mut u8, len: usize) {
    let skip = start.align_offset(4096).min(len);
    let pages = (len - skip) & !4095;
    #[cfg(target_os = "linux")]
    // SAFETY: whole pages of an anonymous private mapping of ours; they come back as zeros.
    let given = unsafe { libc::madvise(start.add(skip).cast(), pages, libc::MADV_DONTNEED) == 0 };
    #[cfg(not(target_os = "linux"))]
    let given = false;
    let zeroed = if given { skip } else { len };
    // SAFETY: by contract.
    unsafe {
        start.write_bytes(0, zeroed);
        start.add(skip + pages).write_bytes(0, len - skip - pages);
    }
}

/// Asks for 2 MiB pages; a system that has none leaves small ones.
fn prefer_large_pages(start: NonNull<u8>, len: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: advice on a mapping of ours; it changes no content.
    unsafe {
        libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, len);
}

/// A slice whose parts several threads fill at the same time.
#[derive(Debug)]
pub struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    _memory: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Parts<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Parts<'_, T> {}

// SAFETY: a `Parts` hands out `&mut [T]` only through `part`, whose contract is that parts in
// use at one time do not overlap; `T: Send` because another thread may fill them.
unsafe impl<T: Send> Send for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// The parts of `slice`.
    pub fn new(slice: &'a mut [T]) -> Parts<'a, T> {
        Parts { start: slice.as_mut_ptr(), len: slice.len(), _memory: PhantomData }
    }

    /// The first element's address. Its elements are used under the contract of [`Parts::part`].
    pub fn start(&self) -> *mut T {
        self.start
    }

    /// Length of the whole.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements of `range`.
    ///
    /// # Panics
    /// If `range` is not inside the slice.
    ///
    /// # Safety
    /// While the result lives, nothing else may use any of its elements.
    #[allow(clippy::mut_from_ref)] // that is the point; the contract is the caller's
    pub unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part of the slice");
        // SAFETY: inside the slice, which outlives 'a; alone by contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zero_aligned_and_writable() {
        for len in [0, 1, 4096, HUGE_PAGE, 3 * HUGE_PAGE + 5] {
            let mut buffer = Buffer::zeroed(len).expect("memory");
            assert_eq!(buffer.bytes().len(), len);
            assert!(buffer.bytes().iter().all(|&b| b == 0));
            #[cfg(unix)]
            assert_eq!(buffer.bytes().as_ptr().align_offset(HUGE_PAGE), 0);
            buffer.bytes_mut().fill(9);
            assert!(buffer.bytes().iter().all(|&b| b == 9));
        }
    }

    #[test]
    fn a_buffer_beyond_the_address_space_is_an_error() {
        for len in [usize::MAX, isize::MAX as usize, 1 << 60] {
            assert_eq!(Buffer::zeroed(len).map(drop).expect_err("too large").bytes, len);
        }
    }

    #[test]
    fn threads_fill_their_own_parts() {
        let mut data = vec![0; 1000];
        let parts = Parts::new(&mut data);
        std::thread::scope(|scope| {
            for i in 0..4 {
                // SAFETY: four ranges that do not overlap.
                scope.spawn(move || unsafe { parts.part(i * 250..(i + 1) * 250) }.fill(i));
            }
        });
        assert!(data.iter().enumerate().all(|(k, &v)| v == k / 250));
    }
}
