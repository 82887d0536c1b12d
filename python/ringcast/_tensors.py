# SPDX-License-Identifier: Apache-2.0
"""What the extension asks of torch and NumPy once, and tensors that are sent in another form.

A dtype of the extension's table comes as (torch's name, NumPy's name or None, bytes of an element).
"""

from ringcast import _ringcast
from ringcast._pickling import elsewhere


def of_torch(torch, dtypes):
    """The first members of struct rc_py_torch. A dtype is None if this torch has none, or stores it in another way."""
    found = [getattr(torch, name, None) for name, _, _ in dtypes]
    found = [None if getattr(dtype, "itemsize", size) != size else dtype for dtype, (_, _, size) in zip(found, dtypes)]
    indices = {dtype: index for index, dtype in enumerate(found) if dtype is not None}
    functions = torch.empty, torch.empty_strided, torch.from_dlpack
    return torch.Tensor, torch.nn.Parameter, *functions, indices, torch.device("cpu"), ("dtype", "device"), *found


def of_numpy(numpy, dtypes):
    """The first members of struct rc_py_numpy."""
    found = [numpy.dtype(name) if name else None for _, name, _ in dtypes]
    return numpy.ndarray, numpy.empty, numpy.frombuffer, *found


def made_plain(tensor, place, indices):
    """A tensor that DLPack's exchange API can describe, with the values in memory: a lazy negation or conjugation is
    carried out, bits8 and the like are ints; and the index of the dtype. None: plain already, or not sent as a tensor
    (sparse, nested, quantized, packed bits). `place`: in words, for an error."""
    import torch

    if not (tensor.is_cpu or tensor.is_cuda):
        raise elsewhere(place, tensor.device)
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    index = indices.get(tensor.dtype)
    is_bits = str(tensor.dtype).startswith("torch.bits")
    if index is None or not (is_bits or tensor.is_neg() or tensor.is_conj()):
        return None
    if tensor.is_cuda and not is_bits:
        _ringcast._before_copy(tensor)
    try:
        ints = torch.uint16 if tensor.dtype.itemsize == 2 else torch.uint8
        plain = tensor.view(ints) if is_bits else tensor.resolve_conj().resolve_neg()
        if type(plain) is not torch.Tensor:
            raise TypeError(f"it gives a {type(plain).__name__}")
    except Exception as error:
        raise RuntimeError(
            f"{place} has to be resolved or viewed as bytes to be sent, and torch can't do that here: {error}. If a "
            "mode of torch is in force (FakeTensorMode), send outside of the mode"
        ) from None
    return plain, index
