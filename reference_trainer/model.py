"""A byte-level GPT: pre-norm transformer blocks, learned positions, tied input and output embedding."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 256  # one token a byte: no tokenizer to download


@dataclass(frozen=True)
class Shape:
    layers: int
    heads: int
    width: int
    context: int
    dropout: float = 0.0


class Block(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.heads = shape.heads
        self.dropout = nn.Dropout(shape.dropout)
        self.norm_attention = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.projection = nn.Linear(shape.width, shape.width, bias=False)
        self.norm_mlp = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, time, width) to the same shape."""
        batch, time, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.projection(mixed.transpose(1, 2).reshape(batch, time, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm_mlp(x)))))


class GPT(nn.Module):
    """Predicts the next byte. `seed` alone decides the initial weights, which are equal on every rank."""

    def __init__(self, shape: Shape, seed: int):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self._initialize(shape, torch.Generator().manual_seed(seed))

    def _initialize(self, shape: Shape, generator: torch.Generator) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue  # norms start as identity, biases are set below
            # GPT-2: residual branches start smaller, so that depth does not blow up the residual stream.
            into_residual = name.endswith(("projection.weight", "down.weight"))
            std = 0.02 / (2 * shape.layers) ** 0.5 if into_residual else 0.02
            nn.init.normal_(parameter, std=std, generator=generator)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps byte values (batch, time) to logits (batch, time, 256)."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


@functools.cache
def build_model(shape: Shape, seed: int) -> GPT:
    return GPT(shape, seed)


def loss_per_sequence(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns each sequence's mean cross-entropy in nats per byte: (batch, time, 256), (batch, time) → (batch,)."""
    losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(targets.shape).mean(dim=1)
