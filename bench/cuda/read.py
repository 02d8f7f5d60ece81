#!/usr/bin/env python3
"""Reads a GPU's memory as fast as it goes, by the kernel `read_all` of crates/cuda/kernels/probe.cu.

    python3 bench/cuda/read.py PROBE.fatbin        (prints one line of JSON; leaves with 3 where there is no GPU)

Needs the driver only. Median of the runs after the first, each over more than the last cache holds."""

import ctypes as C
import json
import statistics
import sys

BYTES, RUNS = 4 << 30, 12
THREADS, BLOCKS_OF_SM = 256, 8


class Args(C.Structure):  # crates/cuda/kernels/args.h
    _fields_ = [("p", C.c_uint64 * 16), ("n", C.c_uint32 * 24), ("f", C.c_float * 8)]


def main():
    try:
        cu = C.CDLL("libcuda.so.1")
    except OSError:
        print("no GPU: there is no libcuda.so.1")
        return 3

    def do(name, *args):
        code = getattr(cu, name)(*args)
        if code:
            text = C.c_char_p()
            cu.cuGetErrorName(code, C.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()}")

    device, context, count = C.c_int(), C.c_void_p(), C.c_int()
    try:
        do("cuInit", 0)
        do("cuDeviceGetCount", C.byref(count))
    except RuntimeError as error:
        print(f"no GPU: {error}")
        return 3
    if not count.value:
        print("no GPU: the driver has none")
        return 3
    do("cuDeviceGet", C.byref(device), 0)
    do("cuDevicePrimaryCtxRetain", C.byref(context), device)
    do("cuCtxSetCurrent", context)
    name, sms, driver = C.create_string_buffer(256), C.c_int(), C.c_int()
    do("cuDeviceGetName", name, 256, device)
    do("cuDeviceGetAttribute", C.byref(sms), 16, device)  # multiprocessors
    do("cuDriverGetVersion", C.byref(driver))

    module, kernel, memory, out = C.c_void_p(), C.c_void_p(), C.c_uint64(), C.c_uint64()
    with open(sys.argv[1], "rb") as file:
        do("cuModuleLoadData", C.byref(module), file.read())
    do("cuModuleGetFunction", C.byref(kernel), module, b"read_all")
    do("cuMemAlloc_v2", C.byref(memory), C.c_size_t(BYTES))
    do("cuMemAlloc_v2", C.byref(out), C.c_size_t(16))
    do("cuMemsetD32_v2", memory, 0x01234567, C.c_size_t(BYTES // 4))

    blocks = sms.value * BLOCKS_OF_SM
    args = Args()
    args.p[0], args.p[1] = memory.value, out.value
    args.n[0], args.n[1] = BYTES // 16, blocks
    pointers = (C.c_void_p * 1)(C.addressof(args))
    before, after, ms = C.c_void_p(), C.c_void_p(), C.c_float()
    for event in (before, after):
        do("cuEventCreate", C.byref(event), 0)
    rates = []
    for _ in range(RUNS):
        do("cuEventRecord", before, None)
        do("cuLaunchKernel", kernel, blocks, 1, 1, THREADS, 1, 1, 0, None, pointers, None)
        do("cuEventRecord", after, None)
        do("cuEventSynchronize", after)
        do("cuEventElapsedTime_v2" if hasattr(cu, "cuEventElapsedTime_v2") else "cuEventElapsedTime",
           C.byref(ms), before, after)
        rates.append(BYTES / ms.value / 1e6)
    print(json.dumps({"card": name.value.decode(), "sms": sms.value, "driver_cuda": driver.value,
                      "read_gb_s": round(statistics.median(rates[1:]), 1)}))
    return 0


sys.exit(main())
