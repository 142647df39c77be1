"""The target: an mlx-lm model run layer by layer, with taps, block verification and exact put-back."""

from splashlite.target.load import load_target
from splashlite.target.target import Seen, Target

__all__ = ["Seen", "Target", "load_target"]
