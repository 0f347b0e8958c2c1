"""What a built-in model's spec says about its layers, for the modules that look inside a vector of weights."""

from typing import NamedTuple

from fewjoule.errors import InputError
from fewjoule.models import Model


class Mlp(NamedTuple):
    """Dense layers with ReLU between them."""

    sizes: tuple[int, ...]


class Conv4(NamedTuple):
    """Four blocks of convolution, normalisation, ReLU and max-pooling, then one dense layer."""

    image: tuple[int, int, int]  # height, width, channels
    classes: int
    filters: int
    pools: tuple[tuple[int, int], ...]  # window of each block's pooling
    sides: tuple[int, int]  # height and width that the dense layer sees


def architecture(model: Model) -> Mlp | Conv4:
    """The layers of a built-in model; a user's own pair of functions has none that are known."""
    kind, _, rest = model.spec.partition(":")
    if kind == "mlp":
        return Mlp(tuple(int(n) for n in rest.split("-")))
    if kind == "conv4":
        image, classes, filters = rest.split("-")
        height, width, channels = (int(n) for n in image.split("x"))
        pools, sides = [], (height, width)
        for _ in range(4):
            pools.append((2 if sides[0] > 1 else 1, 2 if sides[1] > 1 else 1))
            sides = (sides[0] // pools[-1][0], sides[1] // pools[-1][1])
        return Conv4((height, width, channels), int(classes), int(filters), tuple(pools), sides)
    raise InputError(
        f"the layers of a {kind or 'custom'} model are not known; this works for the built-in mlp and conv4 models."
    )
