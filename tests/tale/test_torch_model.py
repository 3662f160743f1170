"""The torch model equals the reference implementation and is as good as the card says."""

from __future__ import annotations

import pytest
import torch

from app.tale import model_dir


@pytest.fixture(scope="module")
def bundled():  # type: ignore[no-untyped-def]
    from tests.tale.sample import open_bundled

    return open_bundled()


def test_cached_steps_equal_one_pass(bundled) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = bundled
    ids = torch.tensor([tokenizer.encode("Once upon a time there was a fox.").ids])
    with torch.inference_mode():
        whole, _ = model(ids)
        first, past = model(ids[:, :4])
        parts = [first]
        for at in range(4, ids.shape[1]):
            hidden, past = model(ids[:, at : at + 1], torch.tensor([[at]]), None, past)
            parts.append(hidden)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_text_does_not_depend_on_its_batch(bundled) -> None:  # type: ignore[no-untyped-def]
    from tests.tale.sample import ask, complete

    model, tokenizer = bundled
    prompts = [ask("Tell me a story about a bear and a kite."), ask("What is a token?")]
    together = complete(model, tokenizer, prompts, max_tokens=24, seed=3)
    alone = complete(model, tokenizer, prompts[:1], max_tokens=24, seed=3)
    assert together[0] == alone[0]


@pytest.mark.slow
def test_logits_equal_transformers(bundled) -> None:  # type: ignore[no-untyped-def]
    import transformers

    model, tokenizer = bundled
    reference = transformers.LlamaForCausalLM.from_pretrained(model_dir(), dtype=torch.float32)
    text = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\nOnce upon a time"
    ids = torch.tensor([tokenizer.encode(text).ids])
    with torch.inference_mode():
        ours = model.logits(model(ids)[0])
        theirs = reference(ids).logits
    assert (ours - theirs).abs().max() <= 2e-4 * theirs.abs().max()
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.mark.slow
def test_transformers_reads_the_tokenizer_and_template() -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir())
    messages = [{"role": "user", "content": "Hi 🦊"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nHi 🦊<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.slow
def test_a_part_of_the_evaluation_holds(bundled) -> None:  # type: ignore[no-untyped-def]
    from tests.tale.evaluate import question_report, story_report

    model, tokenizer = bundled
    stories = story_report(model, tokenizer, n=30)
    assert stories["contain_character_and_thing"] >= 27
    assert stories["end_by_themselves"] >= 28
    assert stories["repeat_a_sentence_three_times"] == 0
    assert question_report(model, tokenizer, n=40)["right"] >= 28
