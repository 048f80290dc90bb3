"""`flare train-draft`: trains a draft head for a model on text that the model itself writes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from flare.console import notices, results
from flare.draft_prompts import training_questions
from flare.drafts import training_directory
from flare.errors import FlareError
from flare.models import ByteBars
from flare.options import DEFAULT_MODEL, ModelArgument
from helios.engine.manifest import TokenizerEntry
from helios.runtime.text import TextModel
from ignition.checkpoint import Checkpoint
from ignition.sources import read_source, resolve

if TYPE_CHECKING:
    from ignition.distillation.corpus import Progress as DraftProgress
    from ignition.draft.file import DraftRecord

_NAMES = {
    "generate": "writing texts",
    "start": "starting point",
    "train": "training",
    "measure": "measuring",
}


def train_draft(
    *,
    model: ModelArgument = DEFAULT_MODEL,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Directory to work in (default: in the user's cache)."),
    ] = None,
    shards: Annotated[
        int, typer.Option(min=2, help="Batches of 32 texts to write; the last is held out.")
    ] = 48,
    output_tokens: Annotated[int, typer.Option(min=8, help="Longest text, in tokens.")] = 160,
    steps: Annotated[int, typer.Option(min=1, help="Training steps, of sixteen texts each.")] = 680,
    depths: Annotated[
        int, typer.Option(min=1, max=8, help="Proposals in a row that training unrolls.")
    ] = 2,
    draft_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of the vocabulary that the head can propose.")
    ] = 6144,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts, draws and training order.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads.")] = 2,
) -> None:
    """Train a draft head that proposes what the model will say; prints the head's file.

    The model writes the texts itself. Interrupt it at any time: the same command goes on where it
    stopped.

    Examples:
    [bold]flare train-draft[/bold]
    [bold]flare train-draft model.gguf --output my-head --threads 1[/bold]
    """
    # PyTorch takes seconds to import, and no other command needs it.
    from ignition.distillation.make import DraftPlan, make_draft  # noqa: PLC0415 - as said above.
    from ignition.distillation.training import TrainingPlan  # noqa: PLC0415 - the same.

    source = resolve(model)
    with ByteBars() as bytes_done:
        checkpoint = read_source(source, progress=bytes_done)
    plan = DraftPlan(
        shards=shards,
        output_tokens=output_tokens,
        context_tokens=output_tokens + 96,
        draft_tokens=draft_tokens,
        seed=seed,
        training=TrainingPlan(steps=steps, depths=depths, seed=seed),
    )
    directory = output or training_directory(source.name, checkpoint.sha256)
    prompts = _prompts(checkpoint)
    with _bars() as report:
        path, record = make_draft(
            checkpoint, prompts, plan, directory, threads=threads, progress=report
        )
    notices().print(report_table(record))
    results().print(str(path), soft_wrap=True, highlight=False)


def _prompts(checkpoint: Checkpoint) -> list[list[int]]:
    text = checkpoint.text
    entry = TokenizerEntry(
        file="tokenizer.json",
        vocabulary_size=checkpoint.geometry.vocabulary_size,
        bos_token_id=text.bos_token_id,
        eos_token_ids=text.eos_token_ids,
        add_bos=text.add_bos,
        chat_template=None,
    )
    model = TextModel(text.tokenizer_json, text.chat_template, entry)
    questions = training_questions()
    if not model.has_chat_template:
        return [model.encode(f"Question: {question}\nAnswer:") for question in questions]
    prompts = [model.encode_chat([{"role": "user", "content": q}]) for q in questions]
    if not all(prompts):
        raise FlareError("the model's chat template makes empty prompts of the training questions")
    return prompts


def report_table(record: DraftRecord) -> Table:
    """Return the held-out figures of a head."""
    table = Table("depth", "greedy, given before", "greedy, so far", "rejection", "likeliest")
    for row in record.report:
        figures = (row.greedy_agreement, row.greedy_survival, row.overlap, row.likeliest)
        table.add_row(str(row.depth), *(f"{value:.3f}" for value in figures))
    table.caption = (
        f"accepted share on {record.held_out_texts} texts that training did not see; "
        f"{record.training_tokens} tokens, {record.steps} steps"
    )
    return table


@contextlib.contextmanager
def _bars() -> Iterator[DraftProgress]:
    """Show one bar per stage, with the time that is left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with Progress(*columns, console=notices()) as bars:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int, detail: str = "") -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(_NAMES.get(stage, stage), total=total, detail=detail)
            bars.update(tasks[stage], completed=done, detail=detail)

        yield report
