# SPDX-License-Identifier: Apache-2.0
"""Values to send: recipes that both sides cook from, a strategy for recipes, and what "the same"
means.

A recipe is ("kind", ...): plain data, so that a reader process makes what it should have received
by itself.
"""

import math

import numpy as np
from hypothesis import strategies as st
from needs import torch

NUMPY_DTYPES = (
    "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 "
    "complex128 "
    ">i4 datetime64[s] longdouble"
).split()
# Those that torch's DLPack has a code for, and those of which there are only bits.
DLPACK_DTYPES = (
    "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 "
    "complex32 complex64 "
    "complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
    "float4_e2m1fn_x2"
).split()
BIT_DTYPES = (
    "bits8 bits16 bits1x8 bits2x4 bits4x2 int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 "
    "uint4 uint5 uint6 uint7"
).split()
if torch:  # an older one lacks some
    DLPACK_DTYPES, BIT_DTYPES = (
        [name for name in names if hasattr(torch, name)] for names in (DLPACK_DTYPES, BIT_DTYPES)
    )
TORCH_DTYPES = DLPACK_DTYPES + BIT_DTYPES
LAYOUTS = ("plain", "transposed", "strided", "expanded", "negative")

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
seeds = st.integers(0, 2**31)
arrays = st.tuples(
    st.just("array"), st.sampled_from(NUMPY_DTYPES), shapes, st.sampled_from(LAYOUTS), seeds
)
tensors = st.tuples(
    st.just("tensor"),
    st.sampled_from(TORCH_DTYPES),
    shapes,
    st.sampled_from(LAYOUTS + ("conjugated", "imaginary")),
    st.sampled_from(("plain", "requires_grad", "parameter")),
    seeds,
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(codec=None), max_size=20),
    st.binary(max_size=300),
).map(lambda value: ("scalar", value))
big = st.tuples(
    st.just("array"), st.just("float32"), st.just((64, 1024)), st.sampled_from(LAYOUTS), seeds
)
leaves = st.one_of(
    scalars, arrays, *([tensors] if torch else []), st.tuples(st.just("bytearray"), st.binary())
)
nested = st.recursive(
    leaves,
    lambda children: st.one_of(
        st.tuples(st.sampled_from(("list", "tuple")), st.lists(children, max_size=3)),
        st.tuples(st.just("dict"), st.dictionaries(st.text(max_size=5), children, max_size=3)),
    ),
    max_leaves=8,
)
dicts = st.tuples(
    st.just("dict"), st.dictionaries(st.text(max_size=12), st.one_of(nested, big), max_size=8)
)


def raw(seed, bytes_):
    return np.random.default_rng(seed).integers(0, 256, bytes_, dtype=np.uint8)


def cook_array(dtype, shape, layout, seed):
    kind = np.dtype(dtype)
    if layout == "strided":
        shape = (*shape[:-1], shape[-1] * 2) if shape else shape
    count = int(np.prod(shape, dtype=np.int64))
    if kind.kind in "bM":
        array = (
            raw(seed, count).astype("i8" if kind.kind == "M" else "u1").reshape(shape).astype(kind)
        )
    elif kind.char == "g":
        array = raw(seed, count).reshape(shape).astype(kind)
    else:
        array = raw(seed, count * kind.itemsize).view(kind).reshape(shape)
    if layout == "transposed":
        return array.T
    if layout == "strided":
        return array[..., ::2] if shape else array
    if layout == "expanded":
        return np.broadcast_to(array, (2, *shape))
    return array[..., ::-1] if layout == "negative" and shape else array


def cook_tensor(dtype, shape, layout, kind, seed):
    dtype = getattr(torch, dtype)
    if layout == "strided" and shape:
        shape = (*shape[:-1], shape[-1] * 2)
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == torch.bool:
        tensor = torch.from_numpy(raw(seed, count)).gt(127).reshape(shape)
    elif count:
        tensor = torch.from_numpy(raw(seed, count * dtype.itemsize)).view(dtype).reshape(shape)
    else:
        tensor = torch.empty(shape, dtype=dtype)
    if layout == "transposed" and tensor.dim() > 1:
        tensor = tensor.transpose(0, -1)
    elif layout == "strided" and shape:
        tensor = tensor[..., ::2]
    elif layout == "expanded":
        tensor = tensor.expand(2, *tensor.shape)
    elif layout == "conjugated" and dtype in (torch.complex64, torch.complex128):
        tensor = tensor.conj()
    elif layout == "imaginary" and dtype in (torch.complex64, torch.complex128):
        tensor = tensor.conj().imag  # its negative bit is set
    differentiable = tensor.is_floating_point() or tensor.is_complex()
    if kind == "parameter":
        return torch.nn.Parameter(tensor, requires_grad=differentiable)
    return (
        tensor.detach().requires_grad_() if kind == "requires_grad" and differentiable else tensor
    )


def cook(recipe):
    kind, *parts = recipe
    if kind == "scalar":
        return parts[0]
    if kind == "bytearray":
        return bytearray(parts[0])
    if kind == "array":
        return cook_array(*parts)
    if kind == "tensor":
        return cook_tensor(*parts)
    if kind == "dict":
        return {key: cook(item) for key, item in parts[0].items()}
    return (list if kind == "list" else tuple)(cook(item) for item in parts[0])


# ---- The same ------------------------------------------------------------------------------------


def tensor_bytes(tensor):
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.element_size() == 1:
        plain = plain.view(torch.uint8)  # torch copies no int4
    plain = plain.contiguous().clone(memory_format=torch.contiguous_format)
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def steps(value):
    """The strides of each axis of more than one element, in elements."""
    if 0 in value.shape:
        return {}
    strides, unit = (
        (value.strides, value.itemsize) if isinstance(value, np.ndarray) else (value.stride(), 1)
    )
    return {i: strides[i] / unit for i in range(len(value.shape)) if value.shape[i] != 1}


def steps_of_arrival(value):
    """Memory order is kept if there are no gaps; all else arrives in C order."""

    def packed(axes):
        sizes = [value.shape[i] for i in axes]
        return {axis: math.prod(sizes[:i]) for i, axis in enumerate(axes)}

    sent = steps(value)
    in_memory = packed(sorted(sent, key=lambda i: sent[i]))
    return sent if in_memory == sent else packed(sorted(sent, reverse=True))


def assert_same_order(got, sent):
    """The value itself, where a sender gets it back, has kept its gaps."""
    assert steps(got) in (steps(sent), steps_of_arrival(sent))


def assert_same_tensor(got, sent):
    assert_same_order(got, sent)
    assert (got.dtype, got.shape, got.device) == (sent.dtype, sent.shape, sent.device)
    assert got.requires_grad == sent.requires_grad and got.is_leaf
    assert tensor_bytes(got) == tensor_bytes(sent)


def assert_same(got, sent):
    """Equal to the bit, of the same types, and in the same order."""
    assert type(got) is type(sent)
    if torch and isinstance(sent, torch.Tensor):
        assert_same_tensor(got, sent)
    elif isinstance(sent, np.ndarray):
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
        assert got.flags.writeable >= sent.flags.writeable
        assert_same_order(got, sent)
        if sent.dtype.char == "g":
            np.testing.assert_array_equal(got, sent)  # its padding bytes mean nothing
        else:
            assert got.tobytes() == sent.tobytes()
    elif isinstance(sent, dict):
        assert list(got) == list(sent)
        for key in sent:
            assert_same(got[key], sent[key])
    elif isinstance(sent, (list, tuple)):
        assert len(got) == len(sent)
        for one, other in zip(got, sent):
            assert_same(one, other)
    else:
        assert got == sent or (got != got and sent != sent)


def each_memory(value):
    """Every tensor, array and bytearray in it."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from each_memory(item)
    elif isinstance(value, (np.ndarray, bytearray)) or (torch and isinstance(value, torch.Tensor)):
        yield value


def scribble(value):
    """Writes into all the memory that the value has."""
    for memory in each_memory(value):
        if isinstance(memory, bytearray):
            memory[:] = bytes(byte ^ 0xFF for byte in memory)
        elif isinstance(memory, np.ndarray):
            if memory.flags.writeable:
                memory[...] = np.zeros((), memory.dtype)
        elif memory.numel():
            flat = memory.detach().as_strided((memory.numel(),), (1,)).view(torch.uint8)
            flat ^= 0xFF


class Holder:
    """An object with a tensor in it, for pickle alone."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __getstate__(self):
        return vars(self)
