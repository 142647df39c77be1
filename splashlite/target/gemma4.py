"""Gemma 4's layers: later ones attend to the keys and values of earlier ones, and each has an input of its own per token."""

import mlx.core as mx
import mlx.nn as nn


def begin(backbone: nn.Module, ids: mx.array, x: mx.array):
    """How to call the layers over one block: ids [1, R] and their embeddings x [1, R, H] -> call(index, layer, x, mask, rows).

    The order of things is mlx-lm's (`models/gemma4_text.py`).
    """
    inputs = None
    if backbone.hidden_size_per_layer_input:
        inputs = backbone._project_per_layer_inputs(x, backbone._get_per_layer_inputs(ids))
    kept = {}

    def call(index, layer, x, mask, rows):
        shared, offset = kept.get(backbone.previous_kvs[index], (None, None))
        own = None if inputs is None else inputs[:, :, index]
        x, shared, offset = layer(x, mask, rows, per_layer_input=own, shared_kv=shared, offset=offset)
        kept[index] = shared, offset
        return x

    return call
