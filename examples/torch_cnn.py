"""A small convolution net in PyTorch. `fewjoule run examples/torch_cnn.toml` federates it."""

from torch import nn


class Cnn(nn.Module):
    input_shape = (784,)  # of one sample: fewjoule's MNIST images are flat

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 5, stride=2)
        self.second = nn.Conv2d(8, 8, 5, stride=2)
        self.norm = nn.GroupNorm(2, 8)
        self.last = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x):
        x = self.first(x.reshape(-1, 1, 28, 28)).relu()
        x = self.norm(self.second(x)).relu()
        return self.last(x.flatten(1))
