"""Write a model without some of its heads, in four forms, and read it back.

| form | layers | size | opened by |
|---|---|---|---|
| ``masked`` | any mask | as before: the heads' output weights are zero | transformers alone |
| ``compact`` | every layer keeps the same number of heads | smaller | transformers alone; few families |
| ``sliced`` | any mask of whole key-value groups | smaller | ``headwise.exports.load`` |
| ``onnx`` | as sliced | smaller | onnxruntime |

Every export is opened again and compared with the gated original before it gets its name; one that differs is removed.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn

from headwise import store
from headwise.errors import HeadwiseError, missing_extra, unknown
from headwise.families import BIAS_OF_FIRST, OWN_HEAD_SIZE
from headwise.heads import Heads, gated, stacks_of, unwrap
from headwise.prune import fold, prune, refuse_wrapped, removal

ABOUT, VERSION = "headwise.json", 1
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # relative to the largest output; half precision below
HALF_TOLERANCE = 3e-2
Inputs = dict[str, torch.Tensor]
Outputs = dict[str, torch.Tensor]


def export(
    model: nn.Module, mask: torch.Tensor, path: str | Path, form: str, tokenizer: Any = None, stack: str | None = None
) -> Path:
    """Write the model without the heads a mask selects (True = removed) as a new folder; the model stays as it is.

    Args:
        model: a plain Hugging Face model, also one that was cut before.
        mask: bool ``(L, H)`` in original coordinates.
        path: the folder to make.
        form: ``masked``, ``compact``, ``sliced`` or ``onnx``, see the table above.
        tokenizer: written beside the model where given.
        stack: which attention of a model that has several.

    Example:
        >>> export(model, bottom(scores, 0.3), "small", "sliced", tokenizer)
        PosixPath('small')
        >>> model = load("small")
    """
    if form not in FORMS:
        raise unknown("export form", form, FORMS)
    path, (write, read) = Path(path), FORMS[form]
    if path.exists():
        raise HeadwiseError(f"{path} is there already", "a new folder", f"remove {path} or name another")
    refuse_wrapped(model, "exporting")
    own = copy.deepcopy(unwrap(model)).eval()
    heads = Heads.of(own, stack=stack)
    mask, inputs = removal(mask, heads), sample_inputs(own)
    with gated(own, (~mask).to(own.dtype), heads=heads):
        expected = outputs(own, inputs)
    with store.folder(path) as scratch:
        write(own, mask, heads, scratch)
        if tokenizer is not None:
            tokenizer.save_pretrained(scratch)
        check_same(read(scratch, own)(inputs), expected, form)
    return path


def load(path: str | Path) -> nn.Module:
    """Open a folder that `export` wrote as ``sliced``, or any plain Hugging Face folder, as the class it was saved as.

    Example:
        >>> load("small").num_parameters() < model.num_parameters()
        True
    """
    path = Path(path)
    if not path.is_dir():
        raise HeadwiseError(f"{path} is not a folder", "the folder of a saved model")
    kind = _model_class(path)
    if not (path / ABOUT).exists():
        return _opened(kind, path)
    return _opened(_cut_class(kind, _kept_heads(path)), path, strict=True)


def _cut_class(kind: Any, kept: dict[str, list[list[int]]]) -> Any:
    """The class whose new models are cut, so that the loader of transformers sees the right shapes from the start."""

    def start(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, config, *args, **kwargs)
        for stack, layers in kept.items():
            prune(self, _removed(layers, Heads.of(self, stack=stack)), stack)
        self.__class__ = kind

    # transformers looks classes up by their name and module, also for what it records and renames
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {"__init__": start, **names})


def sample_inputs(model: nn.Module, batch: int = 3, length: int = 9) -> Inputs:
    """A small random batch that the model can take; the second text is padded."""
    generator = torch.Generator().manual_seed(0)
    config, device = model.config, next(model.parameters()).device
    text = getattr(config, "text_config", config)
    inputs: Inputs = {}
    if hasattr(text, "vocab_size"):
        ids = torch.randint(text.vocab_size, (batch, length), generator=generator)
        seen = torch.ones_like(ids)
        seen[1, length // 2 :] = 0
        inputs = {"input_ids": ids, "attention_mask": seen}
        if getattr(config, "is_encoder_decoder", False) and hasattr(model, "get_decoder"):
            inputs["decoder_input_ids"] = ids.flip(1)
    picture = getattr(config, "vision_config", config)
    if hasattr(picture, "image_size"):
        size = picture.image_size if isinstance(picture.image_size, (list, tuple)) else (picture.image_size,) * 2
        channels = getattr(picture, "num_channels", 3)
        inputs["pixel_values"] = torch.randn(batch, channels, *size, generator=generator).to(model.dtype)
    if model.main_input_name not in inputs:
        raise HeadwiseError(f"no sample can be made of {model.main_input_name} for {type(model).__name__}", "text or pictures")
    return {name: value.to(device) for name, value in inputs.items()}


def outputs(model: nn.Module, inputs: Inputs) -> Outputs:
    """The tensors a model answers with, by name."""
    with torch.no_grad():
        answer = model(**inputs, return_dict=True)
    return {name: value for name, value in answer.items() if isinstance(value, torch.Tensor)}


def check_same(found: Outputs, expected: Outputs, form: str) -> None:
    """Raise unless two sets of outputs agree within what the number format allows."""
    for name, want in expected.items():
        if name not in found or found[name].shape != want.shape:
            raise HeadwiseError(f"the {form} export answers without {name}", f"{name} of shape {tuple(want.shape)}")
        scale = max(1.0, want.abs().max().item())
        difference = (found[name].to(want) - want).abs().max().item() / scale
        allowed = TOLERANCE.get(want.dtype, HALF_TOLERANCE)
        if not difference <= allowed:
            raise HeadwiseError(
                f"the {form} export differs from the gated model by {difference:.1e} of the largest {name}, and was removed",
                f"at most {allowed:.0e}",
            )


def _write_masked(model: nn.Module, mask: torch.Tensor, heads: Heads, folder: Path) -> None:
    cut = [stack for stack in stacks_of(model) if not bool(Heads.of(model, stack=stack).alive.all())]
    if cut:
        raise HeadwiseError(
            f"the {', '.join(cut)} stack has lost heads already, so its shapes are no longer those of the configuration",
            "a model with all its heads for the form masked",
            'form="sliced"',
        )
    fold(model, (~mask).to(model.dtype), heads.stack)
    model.save_pretrained(folder)


def _write_sliced(model: nn.Module, mask: torch.Tensor, heads: Heads, folder: Path) -> None:
    prune(model, mask, heads.stack)
    model.save_pretrained(folder)
    kept = {stack: [list(site.kept) for site in Heads.of(model, stack=stack).sites] for stack in stacks_of(model)}
    digests = {file.name: store.file_digest(file) for file in sorted(folder.iterdir())}
    store.write_json(folder / ABOUT, {"version": VERSION, "form": "sliced", "kept": kept, "files": digests})


def _write_compact(model: nn.Module, mask: torch.Tensor, heads: Heads, folder: Path) -> None:
    if heads.family not in OWN_HEAD_SIZE:
        raise HeadwiseError(
            f"the configuration of {heads.family} has no head size of its own: with fewer heads each would be wider",
            f"one of {', '.join(sorted(OWN_HEAD_SIZE))} for the form compact",
            'form="masked", which any program opens, or form="sliced", which is smaller',
        )
    prune(model, mask, heads.stack)
    stacks = [Heads.of(model, stack=stack) for stack in stacks_of(model)]
    count = _even_count(stacks)
    config = _compact_config(model.config, count, count * heads.num_kv_heads // heads.num_heads, heads.head_dim)
    small = type(model)(config).to(model.device, model.dtype)
    small.load_state_dict(_compact_weights(model, stacks))
    if getattr(model, "generation_config", None) is not None:
        small.generation_config = model.generation_config
    small.save_pretrained(folder)


def _even_count(stacks: list[Heads]) -> int:
    """How many heads every layer keeps, or an error that says how to make the mask even."""
    left = [(heads.stack, site.layer, len(site.kept)) for heads in stacks for site in heads.sites]
    counts = {count for *_, count in left}
    if len(counts) > 1 or 0 in counts:
        fewest = max(min(counts), stacks[0].num_heads // stacks[0].num_kv_heads)
        surplus = [f"{count - fewest} more of {stack} layer {layer}" for stack, layer, count in left if count > fewest]
        missing = [f"give {stack} layer {layer} back {fewest - count}" for stack, layer, count in left if count < fewest]
        raise HeadwiseError(
            f"layers keep {', '.join(str(count) for *_, count in left)} heads",
            f"the same number in every layer{' of every stack' if len(stacks) > 1 else ''} for the form compact",
            f"{'; '.join(missing + ['cut ' + ', '.join(surplus)] * bool(surplus))}; or form=\"sliced\"",
        )
    for heads in stacks:
        different = {site.kept for site in heads.sites}
        if heads.family in BIAS_OF_FIRST and heads.stack != "cross" and len(different) > 1:
            raise HeadwiseError(
                f"{heads.stack} layers of {heads.family} keep different heads, but share one position bias per head",
                f"the same heads in every layer, for instance {sorted(different)[0]}",
                'form="sliced"',
            )
    return counts.pop()


def _compact_config(config: Any, heads: int, groups: int, head_dim: int) -> Any:
    settings = copy.deepcopy(config)
    settings.num_attention_heads, settings.head_dim = heads, head_dim
    if getattr(settings, "num_key_value_heads", None) is not None:
        settings.num_key_value_heads = groups
    try:
        return type(config).from_dict(settings.to_dict())
    except (ValueError, StrictDataclassError) as error:  # some configurations want the hidden size to be a multiple of the number of heads
        fitting = [n for n in range(1, config.num_attention_heads + 1) if config.hidden_size % n == 0]
        raise HeadwiseError(
            f"{type(config).__name__} refuses {heads} heads: {error}",
            f"a number of heads per layer that divides {config.hidden_size}: {fitting}",
            'form="sliced"',
        ) from None


def _compact_weights(model: nn.Module, stacks: list[Heads]) -> dict[str, torch.Tensor]:
    weights = model.state_dict()
    for heads in stacks:
        for name in [name for name in weights if name.endswith("relative_attention_bias.weight")]:
            if name.rsplit(".", 2)[0] == heads.sites[0].name.rsplit(".", 1)[0]:
                weights[name] = weights[name][:, list(heads.sites[0].kept)]
    return weights


def _write_onnx(model: nn.Module, mask: torch.Tensor, heads: Heads, folder: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, "onnx", "the export form onnx")
    prune(model, mask, heads.stack)
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    inputs = sample_inputs(model, batch=2, length=6)
    names = list(outputs(model, inputs))
    dynamic = {
        name: {i: torch.export.Dim.DYNAMIC for i in range(1 if name == "pixel_values" else 2)} for name in inputs
    }
    torch.onnx.export(
        _Answers(model, names),
        kwargs=inputs,
        f=folder / "model.onnx",
        dynamo=True,
        dynamic_shapes={"inputs": dynamic},
        input_names=list(inputs),
        output_names=names,
        verbose=False,
    )
    model.config.save_pretrained(folder)
    store.write_json(folder / ABOUT, {"version": VERSION, "form": "onnx"})


class _Answers(nn.Module):
    """A model that answers with plain tensors in a fixed order."""

    def __init__(self, model: nn.Module, names: list[str]):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        answer = self.model(**inputs, return_dict=True)
        return tuple(answer[name] for name in self.names)


def _read_onnx(folder: Path, like: nn.Module) -> Callable[[Inputs], Outputs]:
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Inputs) -> Outputs:
        answers = session.run(names, {name: value.cpu().numpy() for name, value in inputs.items()})
        return {name: torch.from_numpy(answer) for name, answer in zip(names, answers)}

    return run


def _read_plain(folder: Path, like: nn.Module) -> Callable[[Inputs], Outputs]:
    return _runner(_opened(type(like), folder), like)


def _read_sliced(folder: Path, like: nn.Module) -> Callable[[Inputs], Outputs]:
    return _runner(load(folder), like)


def _runner(model: nn.Module, like: nn.Module) -> Callable[[Inputs], Outputs]:
    model = model.to(like.device, like.dtype).eval()
    if model.config._attn_implementation != like.config._attn_implementation:
        model.set_attn_implementation(like.config._attn_implementation)
    return lambda inputs: outputs(model, inputs)


FORMS = {
    "masked": (_write_masked, _read_plain),
    "compact": (_write_compact, _read_plain),
    "sliced": (_write_sliced, _read_sliced),
    "onnx": (_write_onnx, _read_onnx),
}


def _model_class(path: Path) -> Any:
    """The class a folder was saved as."""
    import transformers

    config = store.read_json(path / "config.json")
    named = (config.get("architectures") if isinstance(config, dict) else None) or ["AutoModel"]
    kind = getattr(transformers, str(named[0]), None)
    if kind is transformers.AutoModel or (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        return kind
    raise HeadwiseError(f"{path} holds a {named[0]}", f"a model class of transformers {transformers.__version__}")


def _opened(kind: Any, path: Path, strict: bool = False) -> nn.Module:
    """`from_pretrained` that never invents weights, never unpickles and never asks the network."""
    try:
        model, info = kind.from_pretrained(path, local_files_only=True, use_safetensors=True, output_loading_info=True)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError, StrictDataclassError) as error:
        raise HeadwiseError(f"{path} cannot be opened ({error})", "the complete folder of a saved model") from error
    wrong = [*info["missing_keys"], *info["mismatched_keys"], *(info["unexpected_keys"] if strict else ())]
    if wrong:
        raise HeadwiseError(f"the weights in {path} do not fit its configuration: {', '.join(map(str, wrong[:5]))}", "all weights")
    return model


def _kept_heads(path: Path) -> dict[str, list[list[int]]]:
    """The heads of every stack and layer of a sliced folder, once its files are seen to be whole."""
    about = store.read_json(path / ABOUT)
    version = about.get("version") if isinstance(about, dict) else None
    if version != VERSION:
        raise HeadwiseError(f"{path / ABOUT} has format version {version}", f"version {VERSION}", "another headwise")
    if about.get("form") != "sliced":
        raise HeadwiseError(f"{path} is an export of the form {about.get('form')}", "the form sliced")
    for name, digest in about["files"].items():
        file = path / Path(name).name
        if not file.is_file() or store.file_digest(file) != digest:
            raise HeadwiseError(f"{file} is missing or not as it was written", "a folder as exported", "export again")
    return about["kept"]


def _removed(layers: list[list[int]], heads: Heads) -> torch.Tensor:
    mask = torch.ones(heads.shape, dtype=torch.bool, device="cpu")
    if len(layers) != heads.num_layers:
        raise HeadwiseError(f"{len(layers)} layers of heads in the {heads.stack} stack", f"{heads.num_layers}")
    for layer, kept in enumerate(layers):
        mask[layer, kept] = False
    return mask
