"""A small head that often proposes what the tiny model says, because it learned its very answers.

`flare train-draft` cannot make one of the tiny model: random weights have nothing to generalize.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import tokenizers
import torch
import torch.nn.functional as F  # noqa: N812 - the name that every PyTorch reader knows.
from torch import Tensor

from helios.engine.ports import SamplingParams
from ignition.checkpoint import Checkpoint
from ignition.distillation.head import Batch, SharedWeights, unroll
from ignition.distillation.start import first_parameters, frequent_tokens
from ignition.distillation.target import Target, Text
from ignition.distillation.training import batch_of
from ignition.draft.file import FORMAT, DraftRecord, write_draft
from ignition.hf_reader import read_directory

LANES, CONTEXT_TOKENS, EPOCHS, DEPTHS = 8, 320, 12, 2


def write_agreeing_head(
    path: Path, model: Path, prompts: Sequence[str], *, output_tokens: int = 40, tokens: int = 180
) -> Path:
    """Train a head on the greedy answers that the model gives to these prompts."""
    checkpoint = read_directory(model, name=model.name)
    texts = _answers(checkpoint, model, prompts, output_tokens)
    ids = frequent_tokens(texts, vocabulary_size=checkpoint.geometry.vocabulary_size, count=tokens)
    shared = SharedWeights.of(checkpoint, torch.from_numpy(ids))
    parameters = {
        name: value.clone().requires_grad_(value.ndim == 2)
        for name, value in first_parameters(checkpoint, shared, texts).items()
    }
    _memorize(parameters, shared, texts)
    record = DraftRecord(
        format=FORMAT,
        target=checkpoint.name,
        target_sha256=checkpoint.sha256,
        training_texts=len(texts),
        training_tokens=sum(len(text.token_ids) - text.prompt_tokens for text in texts),
        held_out_texts=0,
        steps=EPOCHS,
        depths=DEPTHS,
        seed=0,
        options={},
        report=(),
    )
    write_draft(path, record, ids, {k: v.detach().numpy() for k, v in parameters.items()})
    return path


def _answers(
    checkpoint: Checkpoint, model: Path, prompts: Sequence[str], output_tokens: int
) -> list[Text]:
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    target = Target.eager(checkpoint, lanes=LANES, context_tokens=CONTEXT_TOKENS)
    encoded = [tokenizer.encode(prompt).ids for prompt in prompts]
    greedy, found = SamplingParams(temperature=0.0), list[Text]()
    for at in range(0, len(encoded), LANES):
        part = encoded[at : at + LANES]
        found += target.write(part, [greedy] * len(part), output_tokens)
    target.close()
    return sorted(found, key=lambda text: len(text.token_ids))


def _memorize(
    parameters: Mapping[str, Tensor], shared: SharedWeights, texts: Sequence[Text]
) -> None:
    """Fit the head to the very tokens, where training fits it to the target's distribution."""
    batches = [batch_of(texts[at : at + LANES]) for at in range(0, len(texts), LANES)]
    fitted = [value for value in parameters.values() if value.requires_grad]
    optimizer = torch.optim.Adam(fitted, lr=3e-3)
    for _ in range(EPOCHS):
        for batch in batches:
            optimizer.zero_grad()
            states = unroll(parameters, shared, batch, DEPTHS, only_scored=True)
            losses = [_loss(shared, batch, state, depth) for depth, state in enumerate(states, 1)]
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def _loss(shared: SharedWeights, batch: Batch, predicted: Tensor, depth: int) -> Tensor:
    """Return the cross entropy of the tokens behind the entries, where they can be proposed."""
    following = torch.roll(batch.token_ids, -1, 1)
    matches = following[..., None] == shared.draft_token_ids
    has_next = torch.arange(following.shape[1]) + 1 < batch.lengths[:, None]
    used = batch.is_scored(depth) & has_next & matches.any(-1)
    logits = shared.normed(predicted[used]) @ shared.draft_head.T
    return F.cross_entropy(logits, matches[used].long().argmax(-1))
