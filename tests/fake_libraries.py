"""Stand-ins for CuPy and PyTorch, just real enough to be told apart and launched on."""

import contextlib
import types

import numpy as np

DTYPES = ["float32", "float16", "int16"]
with contextlib.suppress(ImportError):
    import ml_dtypes

    DTYPES.append(np.dtype(ml_dtypes.bfloat16).name)


class FakeDevice(contextlib.AbstractContextManager):
    """A GPU that remembers, in `log`, when it was current."""

    def __init__(self, index, log):
        self.id = self.index = index
        self.log = log

    def __enter__(self):
        self.log.append(("enter device", self.index))

    def __exit__(self, *error):
        self.log.append(("leave device", self.index))


class FakeArray:
    __cuda_array_interface__ = {}

    def __init__(self, host, index=0, log=None):
        self.host = np.asarray(host)
        self.device = FakeDevice(index, [] if log is None else log)

    shape = property(lambda self: self.host.shape)
    strides = property(lambda self: self.host.strides)
    dtype = property(lambda self: self.host.dtype)

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.host.ctypes.data, device_id=self.device.index)

    def get(self):
        return self.host.copy()

    def __getitem__(self, index):
        return type(self)(self.host[index], self.device.index, self.device.log)

    def __setitem__(self, index, value):
        self.host[index] = value.host

    def view(self, dtype=None):
        host = self.host.view() if dtype is None else self.host.view(dtype)
        return type(self)(host, self.device.index, self.device.log)

    def reshape(self, *shape):
        return type(self)(self.host.reshape(*shape), self.device.index, self.device.log)

    def astype(self, dtype):
        return type(self)(self.host.astype(dtype), self.device.index, self.device.log)


class CupyArray(FakeArray):
    __module__ = "cupy"
    __hash__ = None  # an array is no key
    ndim = property(lambda self: self.host.ndim)


class TorchTensor(FakeArray):
    """Like a tensor that requires a gradient: no interface before detach()."""

    __module__ = "torch"
    __cuda_array_interface__ = property(lambda self: 1 / 0)
    is_cuda = True
    requires_grad = detached = False

    dtype = property(lambda self: f"torch.{self.host.dtype}")

    def stride(self, axis=None):
        strides = tuple(n // self.host.itemsize for n in self.host.strides)
        return strides if axis is None else strides[axis]

    def element_size(self):
        return self.host.itemsize

    def get_device(self):
        return self.device.index

    def detach(self):
        twin = TorchTensor(self.host, self.device.index)
        twin.detached = True
        return twin

    def cpu(self):
        return self

    def numpy(self):
        if "bfloat16" in self.dtype:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.host

    to = FakeArray.astype

    def fill_(self, value):
        self.host[...] = value
        return self


class TorchCpuTensor(TorchTensor):
    __module__ = "torch"
    is_cuda = False


def fake_cupy(log):
    """A module `cupy` whose current stream has the address 11."""

    def allocate(shape, dtype):
        return CupyArray(np.empty(shape, dtype), log[-1][1], log)

    stream = types.SimpleNamespace(current=types.SimpleNamespace(ptr=11, synchronize=lambda: None))
    runtime = types.SimpleNamespace(current=0, streamIsCapturing=lambda stream: 0)
    runtime.getDevice = lambda: runtime.current
    return types.SimpleNamespace(
        empty=allocate,
        ndarray=allocate,
        zeros=lambda shape, dtype: CupyArray(np.zeros(shape, dtype), log[-1][1], log),
        full=lambda shape, value, dtype: CupyArray(np.full(shape, value, dtype), log[-1][1], log),
        asarray=lambda x: CupyArray(x.copy(), log[-1][1], log),
        cuda=types.SimpleNamespace(
            alloc=lambda n: CupyArray(np.empty(n, np.uint8)).data,
            Stream=stream,
            get_current_stream=lambda: stream.current,
            runtime=runtime,
        ),
    )


def fake_torch(log):
    """A module `torch` whose current stream has the address 22."""

    def tensor(x, device):
        if x.dtype.name == "bfloat16":
            raise TypeError("can't convert np.ndarray of type ml_dtypes.bfloat16")
        return TorchTensor(x.copy(), device.index, log)

    stream = types.SimpleNamespace(cuda_stream=22, synchronize=lambda: None)
    return types.SimpleNamespace(
        **{name: np.dtype(name) for name in DTYPES},
        empty=lambda shape, dtype, device: TorchTensor(np.empty(shape, dtype), device.index, log),
        tensor=tensor,
        is_grad_enabled=lambda: True,
        cuda=types.SimpleNamespace(
            device=lambda device: device, current_stream=lambda device=None: stream
        ),
    )
