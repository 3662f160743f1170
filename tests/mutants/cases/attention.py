"""Faults in attention: masks, barriers, softmax, the merge of splits, pages of the KV cache."""

from tests.mutants.mutant import Mutant

ATTENTION = "gpu/shaders/attention.wgsl"
KV_TILE = "gpu/shaders/lib/attention_kv_tile.wgsl"
STATE = "gpu/shaders/lib/softmax_state.wgsl"
WEIGHTS = "gpu/shaders/attention_weights.wgsl"
PAGING = "gpu/shaders/lib/paging.wgsl"
TEST = "tests/gpu/ops/test_op_attention.py"

MUTANTS = (
    Mutant(
        "causal-mask",
        "a query sees the key after its own position",
        ATTENTION,
        "select(0u, position + 1u, row < run.n)",
        "select(0u, position + 2u, row < run.n)",
        (f"{TEST}::test_a_prompt_attends_only_to_what_came_before",),
    ),
    Mutant(
        "window-mask",
        "a sliding window holds one key more",
        KV_TILE,
        "(keys + WINDOW >= vec4u(n))",
        "(keys + WINDOW + 1u >= vec4u(n))",
        (TEST,),
        "test_a_sliding_window_of_keys",
    ),
    Mutant(
        "window-start",
        "the first rounds of keys inside a sliding window are skipped",
        ATTENTION,
        "first_seen(run.least)",
        "first_seen(run.last)",
        (TEST,),
        "test_sliding_windows or windows_of_other_rows",
    ),
    Mutant(
        "attention-barrier-shares",
        "values are added before all lanes have written the shares of their keys",
        KV_TILE,
        "      if (CAPTURE) { terms[place] = dot_add(share, below, 0.0); }\n    }\n  }\n"
        "  workgroupBarrier();\n",
        "      if (CAPTURE) { terms[place] = dot_add(share, below, 0.0); }\n    }\n  }\n",
        (TEST,),
        "test_positions_around or test_a_long_context or test_groups_in_every_tiling",
    ),
    Mutant(
        "attention-barrier-maxima",
        "the maximum of a round is taken before all lanes have written theirs",
        KV_TILE,
        "max(max(s.x, s.y), max(s.z, s.w)));\n    }\n  }\n  workgroupBarrier();\n",
        "max(max(s.x, s.y), max(s.z, s.w)));\n    }\n  }\n",
        (TEST,),
        "test_positions_around or test_a_long_context or test_groups_in_every_tiling",
    ),
    Mutant(
        "softmax-rescale",
        "sums of earlier keys are not lowered when the maximum rises",
        KV_TILE,
        "(*all).sums[f][j] = now.sum;",
        "(*all).sums[f][j] = state.sum;",
        (TEST,),
        "test_from_uniform_attention_to_one_key or test_a_long_context",
    ),
    Mutant(
        "attention-entropy",
        "the entropy of a head forgets that its maximum rose",
        STATE,
        "factor * fma(part.sum, drop, part.weighted)",
        "factor * part.weighted",
        (TEST,),
        "test_positions_around or entropy",
    ),
    Mutant(
        "merge-values",
        "a later split of the context is merged with the weight of the earlier",
        STATE,
        "vec4f(rescale_factor(after.maximum - maximum))",
        "vec4f(rescale_factor(before.maximum - maximum))",
        ("tests/gpu/ops/test_op_attention_merge.py",),
    ),
    Mutant(
        "merge-last-split",
        "the last split of a long context is left out of the merge",
        "gpu/shaders/attention_merge.wgsl",
        "step.rows[row].position / SPLIT + 1u",
        "max(1u, step.rows[row].position / SPLIT)",
        ("tests/gpu/ops/test_op_attention_merge.py",),
    ),
    Mutant(
        "soft-cap",
        "scores are capped by the tanh of half their value",
        "gpu/shaders/lib/soft_cap.wgsl",
        "* -2.0 / CAP",
        "* -1.0 / CAP",
        (TEST,),
        "test_scores_that_are_capped",
    ),
    Mutant(
        "attention-groups",
        "the next group of query heads begins one head too early",
        ATTENTION,
        "run.kv_head * GROUP + part * HEADS",
        "run.kv_head * GROUP + part * (HEADS - 1u)",
        (TEST,),
        "test_groups_in_every_tiling or test_heads_in_groups",
    ),
    Mutant(
        "page-heads",
        "all key heads of a block are stored in one place",
        PAGING,
        "(block * N_KV_HEADS + kv_head)",
        "(block * N_KV_HEADS)",
        ("tests/gpu/ops/test_op_qkv.py",),
        "test_positions_around",
    ),
    Mutant(
        "page-table",
        "every sequence reads the block table of the first slot",
        ATTENTION,
        "run.table = slot * MAX_BLOCKS;",
        "run.table = 0u;",
        (TEST,),
        "test_prompts_and_decoding_sequences",
    ),
    Mutant(
        "weights-window",
        "the weights that the page shows ignore the sliding window",
        WEIGHTS,
        "key >= oldest && key <= position",
        "key <= position",
        ("tests/gpu/ops/test_op_attention_weights.py",),
        "test_windows_and_soft_caps",
    ),
    Mutant(
        "weights-barrier",
        "the weights that the page shows are summed before all lanes have written their part",
        WEIGHTS,
        "  lane_states[lane] = state;\n  workgroupBarrier();\n",
        "  lane_states[lane] = state;\n",
        ("tests/gpu/ops/test_op_attention_weights.py",),
        "test_weights_of_a_row_add_up_to_one or test_weights_of_heads or test_from_uniform",
    ),
)
