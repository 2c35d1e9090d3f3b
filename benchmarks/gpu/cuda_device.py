# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The first GPU by the driver's binary interface: memory, streams, kernels, and the time of what is
enqueued."""

import ctypes
import random

from library_versions import open_library


def check(status, what):
    if status:
        raise RuntimeError(f"{what}: status {status}")


class Device:
    """The first GPU: memory, and the time of what is enqueued."""

    def __init__(self):
        self.cuda = open_library("libcuda.so.1")
        if self.cuda is None:
            raise RuntimeError("there is no driver")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        check(self.cuda.cuInit(0), "cuInit")
        check(self.cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
        check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "a context")
        check(self.cuda.cuCtxSetCurrent(context), "a context")
        self.stream = ctypes.c_void_p()
        check(self.cuda.cuStreamCreate(ctypes.byref(self.stream), 1), "a stream")
        self.events = [ctypes.c_void_p() for _ in range(2)]
        for event in self.events:
            check(self.cuda.cuEventCreate(ctypes.byref(event), 0), "an event")
        self.flush = self.allocate(128 << 20)

    def allocate(self, size):
        address = ctypes.c_uint64()
        check(self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)),
              f"{size} bytes")
        return address

    def free(self, *addresses):
        for address in addresses:
            self.cuda.cuMemFree_v2(address)

    def fill(self, address, size, seed):
        """With numbers of both signs and of several magnitudes, as weights and activations are:
        what a product takes depends on them."""
        draw = random.Random(seed)
        block = bytearray(draw.randbytes(min(size, 4 << 20)))
        for i in range(1, len(block), 2):
            block[i] = block[i] & 0x80 | 0x3c + (block[i] & 3)  # Of a magnitude from 2^-7 on.
        text = (ctypes.c_char * len(block)).from_buffer(block)
        for at in range(0, size, len(block)):
            check(self.cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(address.value + at), text,
                                            ctypes.c_size_t(min(len(block), size - at))), "a copy")

    def overwrite_cache(self):
        check(self.cuda.cuMemsetD8Async(self.flush, ctypes.c_ubyte(0), ctypes.c_size_t(128 << 20),
                                        self.stream), "a memset")

    def seconds(self, work):
        """Of what `work` enqueues."""
        check(self.cuda.cuEventRecord(self.events[0], self.stream), "an event")
        work()
        check(self.cuda.cuEventRecord(self.events[1], self.stream), "an event")
        check(self.cuda.cuEventSynchronize(self.events[1]), "the work")
        ms = ctypes.c_float()
        elapsed = getattr(self.cuda, "cuEventElapsedTime_v2", None) or self.cuda.cuEventElapsedTime
        if elapsed(ctypes.byref(ms), *self.events):
            check(self.cuda.cuEventElapsedTime(ctypes.byref(ms), *self.events), "a time")
        return ms.value / 1e3

    def new_stream(self):
        """One that does not wait for others."""
        stream = ctypes.c_void_p()
        check(self.cuda.cuStreamCreate(ctypes.byref(stream), 1), "a stream")
        return stream

    def wait(self, stream=None):
        check(self.cuda.cuStreamSynchronize(stream or self.stream), "the work")

    def free_bytes(self):
        """Of the whole device, whoever uses the rest."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        check(self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "memory")
        return free.value

    def load(self, code, *names):
        """The kernels of these names of CUDA C++."""
        module = ctypes.c_void_p()
        check(self.cuda.cuModuleLoadData(ctypes.byref(module), self.compile(code)), "a module")
        return [self.kernel(module, name) for name in names]

    def kernel(self, module, name):
        found = ctypes.c_void_p()
        check(self.cuda.cuModuleGetFunction(ctypes.byref(found), module, name.encode()), name)
        return found

    def compile(self, code):
        """The binary of CUDA C++ for this device, by NVRTC."""
        nvrtc = open_library("libnvrtc.so.13")
        if nvrtc is None:
            raise RuntimeError("there is no NVRTC")
        digits = []
        for attribute in (75, 76):  # The capability.
            value = ctypes.c_int()
            check(self.cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0), "a device")
            digits.append(value.value)
        program, option = ctypes.c_void_p(), f"--gpu-architecture=sm_{digits[0]}{digits[1]}"
        check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"own.cu", 0, None,
                                       None), "a program")
        options = (ctypes.c_char_p * 1)(option.encode())
        check(nvrtc.nvrtcCompileProgram(program, 1, options), "compiling")
        size = ctypes.c_size_t()
        check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "a binary")
        binary = ctypes.create_string_buffer(size.value)
        check(nvrtc.nvrtcGetCUBIN(program, binary), "a binary")
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        return binary

    def launch(self, kernel, stream, *arguments):
        """A block of one thread; arguments are of ctypes."""
        pointers = (ctypes.c_void_p * max(1, len(arguments)))(
            *[ctypes.cast(ctypes.byref(argument), ctypes.c_void_p) for argument in arguments])
        check(self.cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None),
              "a launch")
