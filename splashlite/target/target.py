"""The target model as the decode loop sees it: prefill, verify, head and embedding."""

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from splashlite.target import families, recurrent
from splashlite.target.state import AttentionRows, RecurrentRows, TargetState, WindowRows

ROWS = {families.ATTENTION: AttentionRows, families.RECURRENT: RecurrentRows}


@dataclass(frozen=True)
class Seen:
    """What one verified block showed: logits [R, V], and the tapped layers' outputs [1, R, taps x H] or None."""

    logits: mx.array
    features: mx.array | None


class Target:
    """An mlx-lm model run layer by layer.

    Taps are the outputs of decoder layers `taps`, concatenated on the last axis in the listed order, taken from running
    the layers and not from hooks.
    """

    def __init__(self, model: nn.Module, config: dict, taps: tuple[int, ...] = ()):
        self.model = model
        self.config = config
        self.taps = taps
        self.stack = families.stack_of(model)
        self.layers = list(self.stack.backbone.layers)
        self.hidden_size = self.stack.backbone.norm.weight.shape[0]
        self.vocab_rows = (self.stack.head or self.stack.backbone.embed_tokens).weight.shape[0]

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def new_state(self) -> TargetState:
        window, owning = self.stack.window, self.stack.kinds[: self.num_layers - self.stack.sharing]
        return TargetState([WindowRows(window) if kind == families.WINDOW else ROWS[kind]() for kind in owning])

    def embed(self, ids: mx.array) -> mx.array:
        """ids [B, L] -> [B, L, H], as the drafter borrows it: the scaled embedding, before any norm."""
        return families.embed(self.stack, ids)

    def head(self, rows: mx.array, multiplier: float | None = None, cap: float | None = None) -> mx.array:
        """Logits of rows after a final norm: [B, L, H] -> [B, L, V]; multiplier and cap as in `scaled`."""
        return self.scaled(families.project(self.stack, rows), multiplier, cap)

    def head_columns(
        self, rows: mx.array, columns: mx.array, multiplier: float | None = None, cap: float | None = None
    ) -> mx.array:
        """`head` for some ids [c] of the vocabulary: [B, L, H] -> [B, L, c]."""
        return self.scaled(families.project_onto(self.stack, rows, columns), multiplier, cap)

    def narrowed(self, ids: mx.array) -> nn.Module:
        """A layer that makes bare logits for some ids [c] of the vocabulary, whose rows it copies: [B, L, H] -> [B, L, c]."""
        return families.narrowed(self.stack, ids)

    def scaled(self, logits: mx.array, multiplier: float | None = None, cap: float | None = None) -> mx.array:
        """Bare logits with a drafter's own multiplier and cap where it states one of them, else with the target's."""
        if multiplier is None and cap is None:
            multiplier, cap = self.stack.output_multiplier, self.stack.final_logit_softcapping
        return families.softcap(logits, multiplier, cap)

    def prefill(self, state: TargetState, ids: mx.array) -> mx.array | None:
        """Commit ids [1, R] without computing a single logit; returns their features [1, R, taps x H] (None without taps)."""
        return self._commit_all(state, ids)[1]

    def read(self, state: TargetState, ids: mx.array) -> tuple[mx.array, mx.array | None]:
        """Commit a batch of equally long texts, ids [B, R]: their rows after the final norm [B, R, H], of which `head`
        makes logits, and their features [B, R, taps x H] (None without taps)."""
        x, features = self._commit_all(state, ids)
        return self.stack.backbone.norm(x), features

    def verify(self, state: TargetState, ids: mx.array) -> Seen:
        """Run ids [1, R] behind the committed text and leave it committed as it was; `state.commit(n)` keeps n rows."""
        rows, features = self._run(state, ids, commit=False)
        return Seen(self.head(self.stack.backbone.norm(rows))[0], features)

    def _commit_all(self, state: TargetState, ids: mx.array) -> tuple[mx.array, mx.array | None]:
        x, features = self._run(state, ids, commit=True)
        for layer in state.layers:
            layer.commit(layer.offset - layer.committed)
        return x, features

    def _run(self, state: TargetState, ids: mx.array, *, commit: bool) -> tuple[mx.array, mx.array | None]:
        x, tapped = families.first_input(self.stack, ids), {}
        call = self.stack.begin(self.stack.backbone, ids, x)
        causal = None if ids.shape[1] == 1 else "causal"
        window_mask = next((rows.mask(ids.shape[1]) for rows in state.layers if isinstance(rows, WindowRows)), None)
        all_rows = state.layers + [None] * self.stack.sharing
        for index, (layer, kind, rows) in enumerate(zip(self.layers, self.stack.kinds, all_rows, strict=True)):
            if kind == families.RECURRENT:
                x = recurrent.run(layer, x, rows, commit=commit)
            else:
                x = call(index, layer, x, window_mask if kind == families.WINDOW else causal, rows)
            if index in self.taps:
                tapped[index] = x
        features = mx.concatenate([tapped[i] for i in self.taps], axis=-1) if self.taps else None
        return x, features
