"""What a decode cycle of the 27B pair costs in launches and bytes, and that docs/kernels.md says so."""

from pathlib import Path

import mlx.core as mx
import pytest

from metal import launches

DOCS = Path(__file__).parents[2] / "docs" / "kernels.md"


@pytest.fixture(scope="module")
def cycle():
    return launches.decode_cycle(with_kernels=True)


def test_the_draft_pass_needs_at_most_two_fifths_of_the_launches_of_plain_operations(cycle):
    assert cycle["draft"].total <= 0.4 * launches.PLAIN_DRAFT_LAUNCHES


def test_each_kernel_is_one_launch_per_use(cycle):
    draft, verify = cycle["draft"].launches, cycle["verify"].launches
    assert [draft[name] for name in ("dynamic_conv", "dynamic_conv_add_norm", "top_k", "selector_walk")] == [
        10,
        10,
        1,
        1,
    ]
    assert verify["gated_delta"] == 48 and verify["mlx_lm_gated_delta"] == 0


def test_no_part_moves_more_weights_than_it_must(cycle):
    for part, (weights, other) in launches.must_move().items():
        assert cycle[part].weight_bytes == weights and cycle[part].other_bytes > other


def test_the_documented_table_is_the_counted_one():
    text = DOCS.read_text()
    for row in launches.table():
        assert row in text, f"docs/kernels.md has to say: {row}"


def test_counting_follows_views_and_counts_what_is_launched():
    x, table = mx.zeros((4, 8)), mx.zeros((1000, 8))
    cost = launches.count(lambda x, table: mx.exp(x.T[:2]) + table[mx.array([1, 2])].sum(), x, table)
    assert cost.launches == {"Exp": 1, "Gather": 1, "Reduce": 1, "Add": 1}
    exp, gather, total, add = 32 + 32, 8 + 2 * 64, 64 + 4, 32 + 4 + 32
    assert cost.other_bytes == exp + gather + total + add
