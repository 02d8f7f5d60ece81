//! The log on a simulated disk: it dies at every system call, loses power, is damaged and filled.
//! Opening never fails and no wrong payload is ever given out.

use tokenmill_disk_tests::{Crash, SimDisk};
use tokenmill_kvlog::{Key, Log, LogOptions, PutError, Run, RunId, RunKind};

const OPTIONS: LogOptions = LogOptions { cap_bytes: 4000, floor_bytes: 0, segment_bytes: 1200 };
const SALT: u64 = 5;

fn key() -> Key {
    Key::of([b"model".as_slice()])
}

fn open(disk: &SimDisk) -> Log {
    Log::open(Box::new(disk.files()), key(), OPTIONS).expect("an open log")
}

/// Texts of a few runs each, two tokens a run; texts share beginnings.
fn text(n: u32) -> Vec<u32> {
    (0..8).map(|i| if i < 4 { i } else { n * 100 + i }).collect()
}

/// The first run of a text of another salt.
fn of_another_salt(tokens: &[u32]) -> Run<'_> {
    Run { parent: RunId::root(&key(), 9), salt: 9, first: 0, tokens, kind: RunKind::Blocks }
}

/// Calls `visit` with every run of a text, until it says stop: the states at its end, which are
/// large, come last.
fn each_run(text: &[u32], mut visit: impl FnMut(&Run<'_>) -> bool) {
    let mut parent = RunId::root(&key(), SALT);
    for (i, tokens) in text.chunks(2).enumerate() {
        let kind = if i == 3 { RunKind::State } else { RunKind::Blocks };
        let run = Run { parent, salt: SALT, first: 2 * i as u32, tokens, kind };
        if !visit(&run) {
            return;
        }
        parent = run.id();
    }
}

/// The one right payload of a run: a function of all tokens up to its end.
fn payload(run: &Run<'_>) -> Vec<u8> {
    let id = run.id();
    let hash = blake3::hash(format!("{id:?}").as_bytes());
    let state = if run.kind == RunKind::State { 100 } else { 0 };
    hash.as_bytes().iter().copied().cycle().take(150 + run.first as usize + state).collect()
}

/// Stores a text; whether all went well.
fn write(log: &mut Log, text: &[u32]) -> bool {
    let mut well = true;
    each_run(text, |run| {
        well &= log.put(run, &payload(run)).is_ok();
        true
    });
    well
}

/// Reads what there is of a text, asserting that it is right; runs found from the start.
fn read(log: &mut Log, text: &[u32]) -> usize {
    let (mut found, mut buffer) = (0, Vec::new());
    each_run(text, |run| {
        let Some(bytes) = log.get(run, &mut buffer) else { return false };
        assert_eq!(bytes, payload(run), "a wrong payload");
        found += 1;
        true
    });
    found
}

fn read_all(log: &mut Log) -> usize {
    (0..20).map(|n| read(log, &text(n))).sum()
}

/// What a process does: writes more than fits, reads in between.
fn life(log: &mut Log) {
    for n in 0..20 {
        write(log, &text(n));
        read(log, &text(n / 2));
    }
}

#[test]
fn what_is_written_is_found_by_the_next_process() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk);
    assert!(write(&mut log, &text(1)) && write(&mut log, &text(2)));
    assert_eq!(read(&mut log, &text(1)), 4);
    assert_eq!(log.stats().written, 6, "a shared run is written once");
    drop(log);
    disk.restart(Crash::PowerCut);
    let mut log = open(&disk);
    assert_eq!((read(&mut log, &text(1)), read(&mut log, &text(2))), (4, 4));
    assert_eq!(read(&mut log, &text(3)), 2, "the shared beginning");
    let other = Key::of([b"other".as_slice()]);
    drop(log);
    let log = Log::open(Box::new(disk.files()), other, OPTIONS).unwrap();
    assert_eq!(log.stats().records, 0, "another model finds nothing");
    assert!(log.stats().bytes > 0, "and leaves it there");
}

#[test]
fn the_least_recently_used_segment_makes_room() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk);
    write(&mut log, &text(0));
    for n in 1..20 {
        write(&mut log, &text(n));
        assert!(disk.bytes() <= OPTIONS.cap_bytes, "{} bytes", disk.bytes());
        // What is used stays.
        assert_eq!(read(&mut log, &text(0)), 4, "after text {n}");
    }
    assert!(log.stats().deleted > 0);
    drop(log);
    let mut log = open(&disk);
    assert_eq!(read(&mut log, &text(0)), 4);
    assert_eq!(read(&mut log, &text(19)), 4);
    assert!(read(&mut log, &text(2)) < 4, "used long ago");
}

#[test]
fn a_crash_at_every_call() {
    let mut lost = 0;
    for crash in [Crash::Kill, Crash::PowerCut] {
        for at in 0.. {
            let disk = SimDisk::new(at);
            disk.crash_at(at);
            // The process does not know that it is dead.
            if let Ok(mut log) = Log::open(Box::new(disk.files()), key(), OPTIONS) {
                life(&mut log);
            }
            let died = disk.has_crashed();
            // The next process dies too, while it cleans up.
            for second in 0..4 {
                disk.restart(crash);
                disk.crash_at(disk.calls() + second * 3);
                if let Ok(mut log) = Log::open(Box::new(disk.files()), key(), OPTIONS) {
                    read_all(&mut log);
                    write(&mut log, &text(50));
                }
            }
            disk.restart(crash);
            let mut log = open(&disk);
            let found = read_all(&mut log);
            lost += usize::from(found == 0);
            assert!(write(&mut log, &text(60)), "it can be written after a crash");
            assert_eq!(read(&mut log, &text(60)), 4);
            if !died {
                assert!(at > 100, "only {at} calls");
                break;
            }
        }
    }
    assert!(lost < 200, "nearly always something is left: {lost}");
}

#[test]
fn a_call_that_fails_harms_nothing() {
    for at in 1..200 {
        let disk = SimDisk::new(at);
        disk.fail_at(at);
        disk.fail_at(at + 7);
        let mut log = open(&disk);
        life(&mut log);
        read_all(&mut log);
        // The last run written is never the one that makes room.
        let tokens = [1, 2];
        let run = of_another_salt(&tokens);
        let again = log.put(&run, &payload(&run)).or_else(|_| log.put(&run, &payload(&run)));
        assert!(again.is_ok(), "call {at}: {again:?}");
        drop(log);
        disk.restart(Crash::Kill);
        let mut log = open(&disk);
        read_all(&mut log);
        assert_eq!(log.get(&run, &mut Vec::new()), Some(&payload(&run)[..]), "call {at}");
    }
}

#[test]
fn damage_is_noticed() {
    let mut damaged = 0;
    for seed in 0..500 {
        let disk = SimDisk::new(seed);
        let mut log = open(&disk);
        life(&mut log);
        let open_while_damaged = seed % 3 == 0;
        if !open_while_damaged {
            drop(log);
            log = open(&SimDisk::new(0));
        }
        for _ in 0..1 + seed % 4 {
            assert!(if seed % 2 == 0 { disk.flip_a_bit() } else { disk.shorten() });
        }
        if !open_while_damaged {
            log = open(&disk);
        }
        read_all(&mut log);
        damaged += u64::from(log.stats().damaged > 0);
        // Each read may find one more damaged record, which is then written anew.
        let mut rounds =
            (0..5).map(|_| write(&mut log, &text(70)) && read(&mut log, &text(70)) == 4);
        assert!(rounds.any(|whole| whole), "seed {seed}");
        read_all(&mut log);
    }
    assert!(damaged > 100, "{damaged}");
}

#[test]
fn a_full_disk_stops_writing_only() {
    let mut refused = 0;
    for capacity in (0..3000).step_by(7) {
        let disk = SimDisk::new(capacity);
        let mut log = open(&disk);
        write(&mut log, &text(1));
        disk.capacity(Some(capacity));
        life(&mut log);
        refused += u32::from(!write(&mut log, &text(80)));
        read_all(&mut log);
        drop(log);
        let mut log = open(&disk);
        read_all(&mut log);
        disk.capacity(None);
        assert!(write(&mut log, &text(81)) && read(&mut log, &text(81)) == 4);
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn the_floor_of_free_space_is_kept() {
    let disk = SimDisk::new(1);
    disk.capacity(Some(3000));
    let options = LogOptions { floor_bytes: 1000, ..OPTIONS };
    let mut log = Log::open(Box::new(disk.files()), key(), options).unwrap();
    for n in 0..20 {
        write(&mut log, &text(n));
        assert!(disk.bytes() <= 2000, "{}", disk.bytes());
    }
    assert!(log.stats().records > 0 && log.stats().deleted > 0);
    disk.capacity(Some(100));
    let tokens = [1, 2];
    let run = of_another_salt(&tokens);
    assert!(matches!(log.put(&run, &[1]), Err(PutError::NoRoom { .. })));
}

#[test]
fn records_of_another_version_are_left_alone() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk);
    write(&mut log, &text(1));
    drop(log);
    let before = disk.bytes();
    disk.edit(|bytes| bytes[8] = 9);
    let mut log = open(&disk);
    assert_eq!((read_all(&mut log), disk.bytes()), (0, before));
    life(&mut log);
    assert!(disk.bytes() <= OPTIONS.cap_bytes, "they are old, and make room in the end");
}
