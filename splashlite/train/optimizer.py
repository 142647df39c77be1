"""What moves the weights: AdamW everywhere, or Muon for the layers' matrices and AdamW for all the rest."""

import mlx.core as mx
import mlx.optimizers as optim


def create(kind: str, rate, decay: float) -> optim.Optimizer:
    """kind "adamw" | "muon"; rate is a number or a schedule, decay the weight decay of both."""
    adamw = optim.AdamW(rate, betas=[0.9, 0.95], weight_decay=decay)
    return adamw if kind == "adamw" else optim.MultiOptimizer([Muon(rate, decay), adamw], [is_matrix])


def is_matrix(path: str, weight: mx.array) -> bool:
    """Whether a weight maps rows to rows; a codebook is a table of vectors, most of which a step does not touch."""
    return weight.ndim == 2 and "codebook" not in path


class Muon(optim.Muon):
    """Muon whose updates are as large as AdamW's usually are, 0.2 per entry, so that one rate suits both
    (Liu et al. 2025, "Muon is scalable for LLM training", section 2.2)."""

    def __init__(self, rate, decay: float):
        super().__init__(rate, weight_decay=0)
        self.decay = decay

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict) -> mx.array:
        rows, columns = parameter.shape
        moved = super().apply_single(gradient, mx.zeros_like(parameter), state)  # max(1, rows / columns)^0.5 is in it
        scale = 0.2 * max(rows, columns) ** 0.5 / max(1, rows / columns) ** 0.5
        return parameter * (1 - self.decay * self.learning_rate) + scale * moved
