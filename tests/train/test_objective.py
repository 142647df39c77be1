"""Losses and gradients against a direct PyTorch computation, block by block, with nothing shared but the weights."""

import mlx.core as mx
import numpy as np
import pytest
import tiny
import torch
from mlx.utils import tree_flatten
from test_forward import ANCHORS, texts

from splashlite.drafter import load_drafter
from splashlite.train.batches import blocks
from splashlite.train.objective import Objective, gamma_for, losses


class Direct:
    """The drafter in PyTorch, one block at a time, as the published formulas read."""

    def __init__(self, config: dict, weights: dict[str, mx.array], target):
        self.config, self.own = config, config["dflash_config"]
        self.w = {
            name: torch.tensor(np.array(array), dtype=torch.float64, requires_grad=True)
            for name, array in weights.items()
        }
        self.table = torch.tensor(np.array(target.stack.backbone.embed_tokens.weight), dtype=torch.float64)

    def norm(self, x, weight):
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]) * weight

    def rope(self, x, positions):
        """x [T, heads, D], halves rotated against each other."""
        half = x.shape[-1] // 2
        theta = self.config["rope_parameters"]["rope_theta"]
        angle = torch.tensor(positions, dtype=torch.float64)[:, None] * theta ** (
            -torch.arange(half, dtype=torch.float64) / half
        )
        cos, sin = torch.cos(angle)[:, None], torch.sin(angle)[:, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def conv(self, x, taps, base, side):
        """x [R, H], taps [R, 2 sides, 2 taps, groups]."""
        rows = []
        for t in range(x.shape[0]):
            wide = taps[t, side].repeat_interleave(x.shape[1] // taps.shape[-1], dim=-1)
            row = (base[side, 0] + wide[0]) * x[t]
            rows.append(row + (base[side, 1] + wide[1]) * x[t - 1] if t else row)
        return torch.stack(rows)

    def sublayer(self, name, x, h, run):
        if f"{name}.base_kernel" not in self.w:
            return x + run(h)
        taps = (h @ self.w[f"{name}.kernel_projection.weight"].T).reshape(len(h), 2, 2, -1)
        base = self.w[f"{name}.base_kernel"]
        return x + self.conv(run(self.conv(h, taps, base, 0)), taps, base, 1)

    def attention(self, layer, h, context, anchor):
        c, name, w = self.config, f"{layer}.self_attn.", self.w
        heads, shared, D = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        places = list(range(anchor)) + list(range(anchor, anchor + len(h)))
        joint = torch.cat([context[:anchor], h])
        q = self.norm((h @ w[name + "q_proj.weight"].T).reshape(-1, heads, D), w[name + "q_norm.weight"])
        k = self.norm((joint @ w[name + "k_proj.weight"].T).reshape(-1, shared, D), w[name + "k_norm.weight"])
        v = (joint @ w[name + "v_proj.weight"].T).reshape(-1, shared, D)
        q, k = self.rope(q, places[anchor:]), self.rope(k, places)
        outputs = []
        for head in range(heads):
            g = head // (heads // shared)
            scores = q[:, head] @ k[:, g].T / D**0.5
            outputs.append(torch.softmax(scores, -1) @ v[:, g])
        return torch.cat(outputs, -1) @ w[name + "o_proj.weight"].T

    def hidden(self, features, anchor, token):
        w = self.w
        context = self.norm(features @ w["fc.weight"].T, w["hidden_norm.weight"])
        x = self.table[[token] + [self.own["mask_token_id"]] * (self.own["block_size"] - 1)]
        for i in range(self.config["num_hidden_layers"]):
            layer = f"layers.{i}"
            h = self.norm(x, w[f"{layer}.input_layernorm.weight"])
            x = self.sublayer(f"{layer}.attention_conv", x, h, lambda u: self.attention(layer, u, context, anchor))  # noqa: B023
            h = self.norm(x, w[f"{layer}.post_attention_layernorm.weight"])

            def mlp(u, layer=layer):
                gate, up = (u @ w[f"{layer}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
                return (torch.nn.functional.silu(gate) * up) @ w[f"{layer}.mlp.down_proj.weight"].T

            x = self.sublayer(f"{layer}.mlp_conv", x, h, mlp)
        return self.norm(x, w["norm.weight"])[1:]

    def weights(self, hidden, true_ids, gamma):
        """By position, or (gamma None) what the block's expected acceptance loses with each row's confidence."""
        if gamma is not None:
            return [float(np.exp(-k / gamma)) for k in range(len(true_ids))]
        certain = [
            0.5 + 0.5 * torch.softmax(row @ self.table.T, -1)[true].item()
            for row, true in zip(hidden, true_ids, strict=False)
        ]
        reach = [float(np.prod(certain[: m + 1])) for m in range(len(certain))]
        return [sum(reach[k:]) for k in range(len(certain))]

    def losses(self, sequences, features, objective):
        base = selector = weight_sum = hit_sum = 0.0
        for row, text in enumerate(sequences):
            for anchor in ANCHORS[row]:
                hidden = self.hidden(features[row], int(anchor), int(text.tokens[min(anchor, len(text) - 1)]))
                true_ids = [int(each) for each in text.tokens[anchor + 1 : anchor + 1 + len(hidden)]]
                weights = self.weights(hidden, true_ids, objective.gamma)
                before = int(text.tokens[min(anchor, len(text) - 1)])
                for k, (true, weight) in enumerate(zip(true_ids, weights, strict=True)):
                    place = anchor + 1 + k
                    logits = hidden[k] @ self.table.T
                    log_q = torch.log_softmax(logits, -1)
                    soft = torch.softmax(
                        torch.tensor(text.top_logits[place - text.prompt_length], dtype=torch.float64), -1
                    )
                    theirs = (soft * log_q[text.top_ids[place - text.prompt_length].astype(np.int64)]).sum()
                    base = base - weight * (objective.soft * theirs + (1 - objective.soft) * log_q[true])
                    weight_sum += weight
                    if "selector_rank" in self.own:
                        best = torch.topk(logits, self.own["selector_top_k"])
                        if true in best.indices:
                            gate = hidden[k] @ self.w["candidate_selector.hidden_projection.weight"].T
                            departure = self.w["candidate_selector.predecessor_codebook"][before] * gate
                            pair = self.w["candidate_selector.successor_codebook"][best.indices] @ departure
                            scores = torch.log_softmax(best.values + pair, -1)
                            selector = selector - weight * scores[best.indices.tolist().index(true)]
                            hit_sum += weight
                    before = true
        return base / weight_sum, selector / max(hit_sum, 1e-9)


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
@pytest.mark.parametrize("soft, gamma", [(0.0, 3.0), (1.0, 3.0), (0.4, 3.0), (1.0, None), (0.4, None)])
def test_losses_and_gradients_are_those_of_a_direct_computation(tmp_path, kind, soft, gamma):
    target = tiny.make_target("dense")
    config = tiny.drafter_config(kind)
    drafter = load_drafter(tiny.write_drafter(tmp_path, config), dtype=mx.float32)
    weights, sequences = dict(tree_flatten(drafter.parameters())), texts(target)
    objective, batch = Objective(gamma, soft, 0.7), blocks(target, sequences, ANCHORS, drafter.block_size)

    def run(parameters):
        drafter.update(parameters)
        found = losses(drafter, target, batch, objective)
        return found["total"], found

    (_, found), gradients = mx.value_and_grad(run)(drafter.parameters())
    direct = Direct(config, weights, target)
    features = [torch.tensor(np.array(each), dtype=torch.float64) for each in batch.features]
    base, selector = direct.losses(sequences, features, objective)
    assert found["base"].item() == pytest.approx(base.item(), rel=2e-5)
    if kind == "dflash2":
        assert selector.item() > 0.01 and found["selector"].item() == pytest.approx(selector.item(), rel=2e-4)
    total = base + 0.7 * selector
    assert found["total"].item() == pytest.approx(total.item(), rel=2e-5)
    total.backward()
    mine = dict(tree_flatten(gradients))
    assert mine.keys() == direct.w.keys()
    for name, parameter in direct.w.items():
        expected, got = parameter.grad.numpy(), np.array(mine[name])
        assert np.abs(expected).max() > 0, name
        assert np.abs(got - expected).max() <= 2e-3 * np.abs(expected).max(), name


def test_columns_stand_for_the_whole_vocabulary(tmp_path):
    """With all others as columns the loss is that of the whole vocabulary; with some of them it is so on average."""
    target = tiny.make_target("dense")
    drafter = load_drafter(tiny.write_drafter(tmp_path, tiny.drafter_config()), dtype=mx.float32)
    objective, sequences = Objective(4.0, 0.5, 1.0), texts(target)
    whole = losses(drafter, target, blocks(target, sequences, ANCHORS, 8), objective)
    every = blocks(target, sequences, ANCHORS, 8, columns=tiny.VOCAB, rng=np.random.default_rng(0))
    assert sorted(np.array(every.columns).tolist()) == list(range(tiny.VOCAB))
    assert losses(drafter, target, every, objective)["total"].item() == pytest.approx(whole["total"].item(), rel=1e-5)
    found = []
    for seed in range(40):
        some = blocks(target, sequences, ANCHORS, 8, columns=16, rng=np.random.default_rng(seed))
        assert some.columns.size < tiny.VOCAB
        assert mx.array_equal(some.columns[some.labels], every.columns[every.labels])
        assert mx.array_equal(some.columns[some.soft_ids], every.columns[every.soft_ids])
        found.append(losses(drafter, target, some, objective)["base"].item())
    assert np.std(found) > 0
    assert np.mean(found) == pytest.approx(whole["base"].item(), rel=0.02)


@pytest.mark.parametrize(("block", "gamma"), [(16, 7), (10, 5), (8, 4), (9, 4.5)])
def test_gamma_is_the_published_one(block, gamma):
    assert gamma_for(block) == pytest.approx(gamma)
