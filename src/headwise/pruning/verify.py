"""Compare the outputs of two models on a small batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

import torch

from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads, NotReached, gated
from headwise.heads.modules import answers
from headwise.heads.proven import proven
from headwise.heads.samples import samples

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the largest output
HALF_TOLERANCE = 3e-2
Inputs = dict[str, torch.Tensor]
Outputs = dict[str, torch.Tensor]


def running_inputs(model: Any) -> Inputs:
    """A small batch that the model accepts, padded if possible."""
    tried: list[Inputs] = []
    with suppress(HeadwiseError, AttributeError, TypeError):  # a configuration may lack any number
        tried.append(sample_inputs(model))
    failure: Exception = HeadwiseError(f"no sample can be made for {type(model).__name__}", "text, pictures or sound")
    for inputs in chain(tried, samples(model)):
        try:
            outputs(model, inputs)
            return inputs
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # an unsuitable sample may fail anywhere in a model
            failure = error
    raise failure


def sample_inputs(model: Any, batch: int = 3, length: int = 9) -> Inputs:
    """A small random batch for the model; the second text is padded."""
    generator = torch.Generator().manual_seed(0)
    config, main = model.config, model.main_input_name
    text, picture = getattr(config, "text_config", config), getattr(config, "vision_config", config)
    if "SequenceClassification" in type(model).__name__ and text.pad_token_id is None:
        batch = 1  # decoders cannot classify several texts without a padding token
    inputs: Inputs = {}
    if hasattr(text, "vocab_size"):
        ids = torch.randint(text.vocab_size, (batch, length), generator=generator)
        if isinstance(eos := getattr(text, "eos_token_id", None), int) and eos < text.vocab_size:
            ids[ids == eos] = (eos + 1) % text.vocab_size
            ids[:, -1] = eos  # some models read their output at the last end-of-sentence token
        seen = torch.ones_like(ids)
        seen[1:2, length // 2 :] = 0
        inputs = {"input_ids": ids, "attention_mask": seen}
        if getattr(config, "is_encoder_decoder", False):
            inputs["decoder_input_ids"] = ids.flip(1)
        if "MultipleChoice" in type(model).__name__:  # texts are (B, choices, T)
            inputs = {name: value.unsqueeze(1).repeat(1, 2, 1) for name, value in inputs.items()}
    if hasattr(picture, "image_size"):
        size = picture.image_size if isinstance(picture.image_size, (list, tuple)) else (picture.image_size,) * 2
        inputs["pixel_values"] = torch.randn(batch, getattr(picture, "num_channels", 3), *size, generator=generator)
    if main == "input_features":
        sound = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions, generator=generator)
        inputs = {main: sound} | {name: ids for name, ids in inputs.items() if name.startswith("decoder")}
    if main not in inputs:
        raise HeadwiseError(f"no sample of {main} can be made for {type(model).__name__}", "text, pictures or sound")
    floats = {name for name, value in inputs.items() if value.is_floating_point()}
    return {k: v.to(model.device, model.dtype if k in floats else None) for k, v in inputs.items()}


def outputs(model: Any, inputs: Inputs, tower: str = "") -> Outputs:
    """The output tensors of a model by name, or all numbers that one of its towers answers with."""
    if tower:
        return {"answers": answers(model.get_submodule(tower), inputs)}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # some mask at random
        answer = model(**inputs, return_dict=True)
    named = answer.items() if hasattr(answer, "items") else ()
    tensors = {name: value for name, value in named if isinstance(value, torch.Tensor)}
    return tensors or {"answers": answers(model, inputs)}


def closed(model: Any, heads: Heads, mask: torch.Tensor) -> tuple[str, Inputs, Outputs]:
    """The outputs without some heads of the model, or of the tower that has them: its name, inputs and outputs."""
    failure: Exception = NotReached(f"no sample reaches the {heads.stack} stack", "inputs of this model")
    for tower, inputs in _samples(model):
        try:
            runner = model.get_submodule(tower)
            with gated(runner, (~mask).to(getattr(model, "dtype", torch.float32)), heads=heads):
                return tower, inputs, outputs(model, inputs, tower)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # an unsuitable sample may fail anywhere in a model
            failure = error
    raise failure


def _samples(model: Any) -> Iterator[tuple[str, Inputs]]:
    """Inputs of the model, and of its towers, by name."""
    with suppress(Exception):
        yield "", running_inputs(model)
    for tower, inputs in proven(model).samples.items():
        if inputs:
            yield tower, inputs


def check_same(actual: Outputs, expected: Outputs, form: str) -> None:
    """Raise unless two sets of outputs agree within floating-point precision."""
    for name, want in expected.items():
        if name not in actual or actual[name].shape != want.shape:
            raise HeadwiseError(f"the {form} export does not return {name}", f"{name} of shape {tuple(want.shape)}")
        want = want if want.is_floating_point() else want.double()
        difference = (actual[name].to(want) - want).abs().max().item() / max(want.abs().max().item(), 1e-6)
        allowed = TOLERANCE.get(want.dtype, HALF_TOLERANCE)
        if not difference <= allowed:
            raise HeadwiseError(
                f"the {form} export was removed: its {name} differs from the gated model's by {difference:.1e}",
                f"at most {allowed:.0e} of the largest value",
            )
