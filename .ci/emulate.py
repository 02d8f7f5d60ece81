#!/usr/bin/env python3
"""Runs a Linux program of one thread on an emulated processor with AVX-VNNI, AVX-512 and its BF16
instructions, whatever this machine has. It can print, read files and ask for memory, nothing else.

    pip install bochscpu-python==0.4.0
    .ci/emulate.py PROGRAM [ARGUMENTS]

The emulator is the processor of Bochs, from a package; this is the little of Linux that a program
needs. The package chooses a processor before those with AVX-VNNI: it is made to choose one that has
it (`choose_processor`). AMX is not built into it."""

import ctypes
import errno
import importlib.util
import mmap
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

MEMORY = 1 << 30  # guest addresses and guest memory are the same numbers
PROGRAM, LOADER, HEAP, ROOM, STACK = 0x1000_0000, 0x1800_0000, 0x1C00_0000, 0x2000_0000, MEMORY - (1 << 20)
TABLES, ENTRY = 0x1000, 0x10000
PAGE = 4096
# What the package picks by default, by version, and what is wanted.
DEFAULTS = ("_Z22create_tigerlake_cpuidP8BX_CPU_C", "_Z29create_corei7_icelake_u_cpuidP8BX_CPU_C",
            "_Z23create_corei3_cnl_cpuidP8BX_CPU_C", "_Z29create_corei7_skylake_x_cpuidP8BX_CPU_C")
WANTED = "_Z28create_sapphire_rapids_cpuidP8BX_CPU_C"
# Names that libraries built on glibc 2.38 want of an older one.
NEWER = """#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
unsigned long long __isoc23_strtoull(const char *s, char **e, int b) { return strtoull(s, e, b); }
int __isoc23_sscanf(const char *s, const char *f, ...) {
    va_list a; va_start(a, f); int n = vsscanf(s, f, a); va_end(a); return n;
}
"""


def library():
    """The package's library, loaded with what it misses."""
    folder = pathlib.Path(importlib.util.find_spec("bochscpu").origin).parent
    path = next(folder.glob("_bochscpu*.so"))
    try:
        ctypes.CDLL(None)["__isoc23_sscanf"]
    except AttributeError:
        with tempfile.TemporaryDirectory() as scratch:
            source, built = pathlib.Path(scratch, "newer.c"), pathlib.Path(scratch, "newer.so")
            source.write_text(NEWER)
            subprocess.run(["cc", "-shared", "-fPIC", "-o", built, source], check=True)
            ctypes.CDLL(str(built), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


def choose_processor(loaded):
    """Writes a jump to the wanted processor over those that could be the default."""
    def address(name):
        return ctypes.cast(loaded[name], ctypes.c_void_p).value
    libc, wanted = ctypes.CDLL(None, use_errno=True), address(WANTED)
    for name in DEFAULTS:
        at = address(name)
        page = at & -PAGE
        if libc.mprotect(ctypes.c_void_p(page), 2 * PAGE, 7):
            raise OSError(ctypes.get_errno(), "mprotect")
        ctypes.memmove(at, b"\xe9" + struct.pack("<i", wanted - (at + 5)), 5)


choose_processor(library())
import bochscpu  # noqa: E402
import bochscpu.cpu  # noqa: E402
import bochscpu.memory  # noqa: E402


class Machine:
    """One thread of one program."""

    def __init__(self, arguments):
        self.memory = mmap.mmap(-1, MEMORY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.host = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.heap, self.room, self.code = HEAP, ROOM, None
        self.session = bochscpu.Session()
        self.session.missing_page_handler = self.page
        self.unknown = set()
        self.free = {}  # length -> addresses
        entry, stack = self.load(arguments)
        self.start(entry, stack)

    def page(self, address):
        address &= -PAGE
        if address >= MEMORY:
            sys.exit(f"an access to {address:#x}")
        bochscpu.memory.page_insert(address, self.host + address)

    def write(self, address, data):
        self.memory[address:address + len(data)] = data

    def text(self, address):
        return self.memory[address:self.memory.find(b"\0", address)].decode()

    # ------------------------------------------------------------------------------- the program

    def elf(self, path, base):
        """Loads a file; its header's fields, and its interpreter."""
        data = pathlib.Path(path).read_bytes()
        entry, headers = struct.unpack_from("<QQ", data, 24)
        size, count = struct.unpack_from("<HH", data, 54)
        interpreter = None
        for i in range(count):
            kind, _, offset, address, _, of_file, _, _ = struct.unpack_from("<IIQQQQQQ", data, headers + i * size)
            if kind == 1:
                self.write(base + address, data[offset:offset + of_file])
            if kind == 3:
                interpreter = data[offset:offset + of_file - 1].decode()
        return base + entry, base + headers, size, count, interpreter

    def load(self, arguments):
        """The program, its loader, and its first stack."""
        entry, headers, size, count, interpreter = self.elf(arguments[0], PROGRAM)
        start = entry
        if interpreter:
            start = self.elf(interpreter, LOADER)[0]
        at = STACK
        pointers = []
        for word in arguments + ["LANG=C"]:
            data = os.fsencode(word) + b"\0"
            at -= len(data)
            self.write(at, data)
            pointers.append(at)
        at -= 16
        self.write(at, bytes(range(16)))
        auxiliary = [(3, headers), (4, size), (5, count), (6, PAGE), (7, LOADER), (9, entry), (11, 0),
                     (12, 0), (13, 0), (14, 0), (16, 0xBFEBFBFF), (17, 100), (23, 0), (25, at),
                     (31, pointers[0]), (0, 0)]
        words = [len(arguments), *pointers[:-1], 0, pointers[-1], 0]
        words += [x for pair in auxiliary for x in pair]
        at = (at - 8 * len(words)) & -64
        self.write(at, struct.pack(f"<{len(words)}Q", *words))
        return start, at

    def start(self, entry, stack):
        """Long mode, all memory mapped where it is, system calls to an instruction that tells."""
        self.write(TABLES, struct.pack("<Q", TABLES + PAGE | 7))
        self.write(TABLES + PAGE, struct.pack("<Q", TABLES + 2 * PAGE | 7))
        pages = [at | 0x87 for at in range(0, MEMORY, 1 << 21)]
        self.write(TABLES + 2 * PAGE, struct.pack("<512Q", *pages))
        self.write(ENTRY, bytes.fromhex("0f09480f07"))  # wbinvd; sysretq
        state = bochscpu.State()
        bochscpu.cpu.set_long_mode(state)
        state.cr3, state.cr0, state.cr4 = TABLES, 0x80050033, 0x50620
        state.efer, state.xcr0 = 0xD01, 0xE7
        state.mxcsr, state.mxcsr_mask, state.fpcw = 0x1F80, 0xFFFF, 0x37F
        state.cs = segment(0x33, 0xA0FB)
        for name in ("ds", "es", "fs", "gs", "ss"):
            setattr(state, name, segment(0x2B, 0xC0F3))
        state.star, state.lstar, state.sfmask = 0x23 << 48 | 0x10 << 32, ENTRY, 0x47700
        state.rip, state.rsp, state.rflags = entry, stack, 0x202
        self.session.cpu.state = state

    def run(self):
        hook = bochscpu.Hook()
        hook.cache_cntrl = lambda *_: self.call()
        hook.exception = lambda _, __, vector, error: self.fault(vector, error)
        self.session.run([hook])
        return self.code

    def fault(self, vector, error):
        cpu = self.session.cpu
        print(f"exception {vector} ({error}) at {cpu.rip:#x}, address {cpu.cr2:#x}", file=sys.stderr)
        self.code = 128 + vector
        self.session.stop()

    # ---------------------------------------------------------------------------- system calls

    def call(self):
        cpu = self.session.cpu
        number = cpu.rax
        handler = CALLS.get(number)
        if handler is None:
            if number not in self.unknown:
                self.unknown.add(number)
                print(f"system call {number} is not there", file=sys.stderr)
            result = -errno.ENOSYS
        else:
            arguments = (cpu.rdi, cpu.rsi, cpu.rdx, cpu.r10, cpu.r8, cpu.r9)
            try:
                result = handler(self, *arguments) or 0
            except OSError as error:
                result = -error.errno
        cpu.rax = result & (1 << 64) - 1

    def exit(self, code, *_):
        self.code = code & 255
        self.session.stop()

    def do_write(self, file, at, count, *_):
        return os.write(file, self.memory[at:at + count])

    def do_writev(self, file, at, count, *_):
        pieces = [struct.unpack_from("<QQ", self.memory, at + 16 * i) for i in range(count)]
        return os.write(file, b"".join(self.memory[a:a + n] for a, n in pieces))

    def do_read(self, file, at, count, *_):
        data = os.read(file, count)
        self.write(at, data)
        return len(data)

    def do_pread(self, file, at, count, offset, *_):
        data = os.pread(file, count, offset)
        self.write(at, data)
        return len(data)

    def do_open(self, _, path, flags, *__):
        path = self.text(path)
        if path == "/proc/self/maps":
            file, name = tempfile.mkstemp()
            os.unlink(name)
            low, high = STACK - (8 << 20), STACK + PAGE
            os.write(file, f"{low:x}-{high:x} rw-p 00000000 00:00 0 [stack]\n".encode())
            os.lseek(file, 0, 0)
            return file
        return os.open(path, flags & ~os.O_CREAT & 3)

    def do_stat(self, found, at):
        """struct stat of x86-64."""
        self.write(at, struct.pack("<QQQIIIIQQQQ", found.st_dev, found.st_ino, found.st_nlink, found.st_mode,
                                   found.st_uid, found.st_gid, 0, 0, found.st_size, 4096, 0))

    def do_newfstatat(self, folder, path, at, flags, *_):
        path = self.text(path)
        self.do_stat(os.stat(path) if path else os.fstat(folder), at)

    def do_mmap(self, address, length, _, flags, file, offset):
        length = (length + PAGE - 1) & -PAGE
        if flags & 0x10:  # MAP_FIXED
            self.memory.madvise(mmap.MADV_DONTNEED, address, length)
        elif self.free.get(length):
            address = self.free[length].pop()
        else:
            address = self.room
            self.room += length + PAGE
        if self.room > STACK - (16 << 20):
            return -errno.ENOMEM
        if not flags & 0x20:  # MAP_ANONYMOUS
            self.write(address, os.pread(file, length, offset))
        return address

    def do_munmap(self, address, length, *_):
        length = (length + PAGE - 1) & -PAGE
        self.memory.madvise(mmap.MADV_DONTNEED, address, length)
        self.free.setdefault(length, []).append(address)

    def do_mremap(self, old, was, length, *_):
        at = self.do_mmap(0, length, 3, 0x22, -1, 0)
        self.write(at, self.memory[old:old + min(was, length)])
        return at

    def do_brk(self, address, *_):
        if HEAP <= address < ROOM:
            self.heap = address
        return self.heap

    def do_arch_prctl(self, code, address, *_):
        if code != 0x1002:  # ARCH_SET_FS
            return -errno.EINVAL
        self.session.cpu.fs = segment(0x2B, 0xC0F3, address)

    def do_affinity(self, _, size, at, *__):
        self.write(at, struct.pack("<Q", 1))
        return 8

    def do_time(self, clock, at, *_):
        now = time.clock_gettime_ns(clock)
        self.write(at, struct.pack("<QQ", *divmod(now, 10**9)))

    def do_limits(self, _, __, ___, at, *____):
        if at:
            self.write(at, struct.pack("<QQ", 8 << 20, 8 << 20))

    def do_sysinfo(self, at, *_):
        self.write(at, struct.pack("<10QHHIQQI", 1, 0, 0, 0, MEMORY, MEMORY // 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1))

    def do_random(self, at, count, *_):
        self.write(at, bytes(count))
        return count

    def nothing(self, *_):
        return 0

    def absent(self, *_):
        return -errno.ENOSYS


CALLS = {
    0: Machine.do_read, 1: Machine.do_write, 3: lambda m, file, *_: os.close(file),
    5: lambda m, file, at, *_: m.do_stat(os.fstat(file), at), 7: Machine.nothing,
    8: lambda m, file, offset, how, *_: os.lseek(file, offset, how), 9: Machine.do_mmap,
    10: Machine.nothing, 11: Machine.do_munmap, 12: Machine.do_brk, 13: Machine.nothing,
    14: Machine.nothing, 16: lambda *_: -errno.ENOTTY, 17: Machine.do_pread, 20: Machine.do_writev,
    21: lambda m, path, *_: 0 if os.path.exists(m.text(path)) else -errno.ENOENT,
    24: Machine.nothing, 25: Machine.do_mremap, 28: Machine.nothing, 39: lambda *_: 1,
    60: Machine.exit, 89: lambda *_: -errno.ENOENT, 99: Machine.do_sysinfo, 131: Machine.nothing, 158: Machine.do_arch_prctl,
    186: lambda *_: 1, 202: Machine.nothing, 204: Machine.do_affinity, 218: lambda *_: 1,
    228: Machine.do_time, 231: Machine.exit, 257: Machine.do_open, 262: Machine.do_newfstatat,
    267: lambda *_: -errno.ENOENT, 273: Machine.nothing, 302: Machine.do_limits,
    318: Machine.do_random, 332: Machine.absent, 334: Machine.absent,
}


def segment(selector, attributes, base=0):
    found = bochscpu.Segment()
    found.present, found.selector, found.base = True, selector, base
    found.limit, found.attr = 0xFFFF_FFFF, attributes
    return found


if __name__ == "__main__":
    code = Machine(sys.argv[1:]).run()
    sys.stdout.flush()
    # (the package tells at the end of what it leaks)
    os._exit(1 if code is None else code)
