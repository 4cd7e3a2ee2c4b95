"""What shape a layer makes of a state's, by arithmetic: nothing is run, and nothing allocated."""

from __future__ import annotations

import math
from typing import Any

Shape = tuple[int, ...]


def after(layer: Any, shape: Shape) -> Shape:
    """ValueError where the layer does not take it."""
    kind = type(layer).__name__
    if kind == "Linear":
        _expect(layer.in_features, shape[-1:], layer)
        return (*shape[:-1], layer.out_features)
    if kind == "Embedding":
        return (*shape, layer.embedding_dim)
    if kind in ("Conv1d", "Conv2d"):
        sides = 1 if kind == "Conv1d" else 2
        if len(shape) != sides + 1:
            raise ValueError(f"{layer} does not take {list(shape)}")
        _expect(layer.in_channels, shape[:1], layer)
        return (layer.out_channels, *_slid(layer, shape[1:]))
    if kind in ("MaxPool2d", "AvgPool2d"):
        if len(shape) != 3:
            raise ValueError(f"{layer} does not take {list(shape)}")
        return (*shape[:1], *_slid(layer, shape[1:]))
    if kind == "AdaptiveAvgPool2d":
        sizes = _pair(layer.output_size, 2)
        return (*shape[:-2], *(n if m is None else m for m, n in zip(sizes, shape[-2:], strict=True)))
    if kind == "Flatten":
        return _flattened(layer, shape)
    if kind == "Unflatten":
        return _unflattened(layer, shape)
    if kind in ("BatchNorm1d", "BatchNorm2d"):
        _expect(layer.num_features, shape[:1], layer)
    if kind == "LayerNorm" and shape[-len(layer.normalized_shape) :] != tuple(layer.normalized_shape):
        raise ValueError(f"{layer} does not take {list(shape)}")
    if kind == "MeanLogStd" and shape[-1] % 2:
        raise ValueError(f"MeanLogStd does not take {shape[-1]}, which has no halves")
    if kind == "Normalize" and layer.shape and tuple(layer.shape) != shape[-len(layer.shape) :]:
        raise ValueError(f"Normalize has statistics of {list(layer.shape)}, a state is {list(shape)}")
    return shape


def _expect(size: int, given: Shape, layer: Any) -> None:
    if given != (size,):
        raise ValueError(f"{layer} does not take {given[0] if given else 'nothing'}")


def _pair(value: Any, sides: int) -> Shape:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * sides


def _slid(layer: Any, shape: Shape) -> Shape:
    """How often a window fits along each side."""
    if layer.padding == "same":
        return shape
    sides = len(shape)
    window, step = _pair(layer.kernel_size, sides), _pair(layer.stride, sides)
    edge = (0,) * sides if layer.padding == "valid" else _pair(layer.padding, sides)
    gap = _pair(getattr(layer, "dilation", 1), sides)
    found = tuple(
        (size + 2 * e - g * (w - 1) - 1) // s + 1
        for size, e, g, w, s in zip(shape, edge, gap, window, step, strict=True)
    )
    if min(found) < 1:
        raise ValueError(f"{layer} does not fit into {list(shape)}")
    return found


def _flattened(layer: Any, shape: Shape) -> Shape:
    """Dimensions are counted with the batch's."""
    whole = (1, *shape)
    first = layer.start_dim % len(whole)
    last = layer.end_dim % len(whole)
    if first == 0:
        raise ValueError(f"{layer} would join states")
    return (*whole[1:first], math.prod(whole[first : last + 1]), *whole[last + 1 :])


def _unflattened(layer: Any, shape: Shape) -> Shape:
    whole = (1, *shape)
    at = layer.dim % len(whole)
    sizes = tuple(int(n) for n in layer.unflattened_size)
    if at == 0 or (-1 not in sizes and math.prod(sizes) != whole[at]):
        raise ValueError(f"{layer} does not take {list(shape)}")
    rest = math.prod(n for n in sizes if n != -1)
    sizes = tuple(whole[at] // max(rest, 1) if n == -1 else n for n in sizes)
    return (*whole[1:at], *sizes, *whole[at + 1 :])
