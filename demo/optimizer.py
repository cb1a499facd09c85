"""Muon for matrices, AdamW for embeddings and norms (Muon: Keller Jordan, 2024; orthogonalised momentum)."""

import torch
from torch import Tensor, nn


class Muon(torch.optim.Optimizer):
    """Updates a matrix along its orthogonalised Nesterov momentum, scaled by sqrt(max(1, rows / columns))."""

    def __init__(
        self, matrices: list[nn.Parameter], *, lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                buffer = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                buffer.lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonalize(weight.grad.lerp(buffer, group["momentum"]))
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(
                    update.to(weight.dtype), alpha=-group["lr"] * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
                )


def orthogonalize(matrix: Tensor, num_steps: int = 5) -> Tensor:
    """Newton-Schulz in bf16: a matrix [rows, columns] with the same singular vectors and singular values near one."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = (matrix / (matrix.norm() + 1e-7)).bfloat16()
    is_tall = x.shape[0] > x.shape[1]
    x = x.T.contiguous() if is_tall else x
    for _ in range(num_steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x


def make_optimizers(model: nn.Module, *, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in model.named_parameters() if weight.ndim != 2 or "embed" in name]
    return [
        Muon(matrices, lr=muon_lr, weight_decay=0.02),
        torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def schedule(step: int, *, num_steps: int, drop_at: int, warmup: int = 40, drop_to: float = 0.5) -> float:
    """Learning rate factor: a short warm-up, constant until `drop_at`, then linear from `drop_to` down to zero.

    Short batches are noisy: the high rate serves only to get started, and the loss halves once it drops.
    """
    if step < drop_at:
        return min(1.0, (step + 1) / warmup)
    return drop_to * (num_steps - step) / (num_steps - drop_at)
