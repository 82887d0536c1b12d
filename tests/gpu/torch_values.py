# SPDX-License-Identifier: Apache-2.0
"""torch's tensors of every dtype and stride, and whether what came is what was sent."""

import functools


@functools.lru_cache(None)
def torch_values():
    """The same in each process. The first two are small: by them the pool is opened."""
    import torch

    def ramp(shape, dtype):
        count = 1
        for length in shape:
            count *= length
        return (torch.arange(count, device="cuda") % 113).to(dtype).reshape(shape)

    dtypes = [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.complex64,
    ]
    others = "complex128", "float8_e4m3fn", "float8_e5m2"
    dtypes += [getattr(torch, name) for name in others if hasattr(torch, name)]
    base = ramp((64, 96), torch.float32)
    values = [{"x": ramp((3, 5), torch.float32)}, {"x": ramp((1000,), torch.int64)}]
    values += [{"x": ramp((17, 33), dtype)} for dtype in dtypes]
    values += [
        {"empty": ramp((0, 7), torch.float32), "scalar": torch.tensor(3.5, device="cuda")},
        {
            "transposed": base.t(),
            "sliced": base[3:60:2, 5:90:3],
            "expanded": base[:1].expand(64, 96),
            "part": base[7],
        },
        {"parameter": torch.nn.Parameter(base.clone()), "grad": base.clone().requires_grad_()},
        {"nested": [{"a": base}, (base[0], "text", 7)], "host": base.cpu(), "none": None},
        {f"t{i}": ramp((i % 40 + 1,), torch.int64) for i in range(200)},
        {"large": ramp((9 << 20,), torch.uint8), "small": ramp((9,), torch.uint8)},
        base,
    ]
    return values


def differs(got, wanted, path="value", device=None, exact=True):
    """exact: as to parameters and requires_grad, too."""
    import torch

    if isinstance(wanted, torch.Tensor):
        device = device or wanted.device.type
        if not isinstance(got, torch.Tensor) or got.device.type != device:
            return (
                f"{path}: {type(got)} on {getattr(got, 'device', None)}, not a tensor on {device}"
            )
        if (got.dtype, got.shape) != (wanted.dtype, wanted.shape) or (
            exact and type(got) is not type(wanted)
        ):
            return f"{path}: {got.dtype} {tuple(got.shape)} {type(got)}"
        if exact and got.requires_grad != wanted.requires_grad:
            return f"{path}: requires_grad is {got.requires_grad}"
        a, b = got.detach().cpu().contiguous(), wanted.detach().cpu().contiguous()
        same = torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
        return None if same else f"{path}: other bytes"
    if isinstance(wanted, dict):
        if type(got) is not dict or list(got) != list(wanted):
            return f"{path}: {got!r:.100}"
        pairs = [(got[key], wanted[key], f"{path}[{key!r}]") for key in wanted]
    elif isinstance(wanted, (list, tuple)):
        if type(got) is not type(wanted) or len(got) != len(wanted):
            return f"{path}: {got!r:.100}"
        pairs = [(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(got, wanted))]
    else:
        return None if got == wanted else f"{path}: {got!r:.100} is not {wanted!r:.100}"
    return next(
        (wrong for wrong in (differs(*pair, device, exact) for pair in pairs) if wrong), None
    )
