"""Write a model without some of its heads, in four forms, and read it back.

| form | layers | size | opened by |
|---|---|---|---|
| ``masked`` | any mask | as before: the heads' output weights are zero | transformers alone |
| ``compact`` | every layer keeps the same number of heads | smaller | transformers alone; few families |
| ``sliced`` | any mask | smaller | ``headwise.load`` |
| ``onnx`` | as sliced | smaller | onnxruntime |

Every export is reopened and compared with the gated original before it gets its name; if they differ, it is removed.
"""

from __future__ import annotations

import copy
import importlib.util
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from torch.export import Dim

from headwise.errors import HeadwiseError, missing_extra, option, unknown
from headwise.heads.cutting import fold, prune
from headwise.heads.families import BIAS_OF_FIRST, OWN_HEAD_SIZE
from headwise.heads.finding import is_cut
from headwise.heads.gates import Heads, stacks_of, unwrap
from headwise.heads.modules import positions
from headwise.heads.remains import refuse_wrapped, removal
from headwise.heads.repairing import refit
from headwise.io import files as store
from headwise.models.adapters import merged
from headwise.models.loading import ABOUT, HEADS, SCALES, VERSION, at_root, line, load, opened, save_sliced
from headwise.models.multitask import FORMAT, MultiTaskModel
from headwise.models.native import plain_model
from headwise.pruning.verify import Inputs, Outputs, check_same, closed, outputs, sample_inputs
from headwise.tasks.corpus import sentences

MAKE = 'save_file({"mask": headwise.bottom(scores, 0.3)}, "mask.safetensors")'  # a mask of scores
SLICED = option("form", "sliced")


def export(
    model: nn.Module,
    mask: torch.Tensor | None,
    path: str | Path,
    form: str,
    tokenizer: Any = None,
    stack: str | None = None,
    task: str | None = None,
    repair: Repair = None,
) -> Path:
    """Save a copy of the model without the heads that a mask selects (True: remove).

    Args:
        model: a Hugging Face model, pruned or not; or a `MultiTaskModel`, which is saved with output heads and factors
            (except as ``onnx``) and opened by `MultiTaskModel.load`.
        mask: bool ``(L, H)`` in original coordinates; None keeps every head.
        path: the folder to create.
        form: ``masked``, ``compact``, ``sliced`` or ``onnx``, see the table above.
        tokenizer: saved with the model, if given.
        stack: the attention stack, if the model has several.
        task: save only this task of a `MultiTaskModel`, as the class of transformers:
            AutoModelForSequenceClassification, TokenClassification or QuestionAnswering opens it (and onnxruntime the
            form ``onnx``).
        repair: texts, a few hundred, or batches of the model's inputs; True for sentences of the embedded corpus. What
            is left of the output projections is refitted to what the whole model's gave on them, by least squares.

    Example:
        >>> export(model, bottom(scores, 0.3), "small", "sliced", tokenizer)
        PosixPath('small')
        >>> model = load("small")
        >>> export(multitask, mask, "sst2", "masked", task="sst2")  # pipeline("text-classification", "sst2")
    """
    if isinstance(model, MultiTaskModel) and task is not None:
        return export(plain_model(model, task), mask, path, form, tokenizer or model.tokenizer, stack, repair=repair)
    if task is not None:
        raise HeadwiseError(f"task={task!r} of a {type(model).__name__}", "a MultiTaskModel, which has tasks")
    if mask is None:
        stacked = model.encoder if isinstance(model, MultiTaskModel) else model
        mask = torch.zeros(Heads.of(stacked, stack=stack).shape, dtype=torch.bool)
    if isinstance(model, MultiTaskModel):
        own_tokenizer = tokenizer or model.tokenizer
        return export_whole(model.save_rest, model.encoder, mask, path, form, own_tokenizer, stack, repair)
    if form not in FORMS:
        raise unknown("export form", form, FORMS)
    path, (write, read) = Path(path), FORMS[form]
    store.require_new(path)
    refuse_wrapped(model, "exporting")
    if not hasattr(unwrap(model), "main_input_name"):
        raise HeadwiseError(f"a {type(model).__name__}", "a Hugging Face model, or a MultiTaskModel")
    own: Any = copy.deepcopy(unwrap(model)).eval()
    heads = Heads.of(own, stack=stack)
    mask = removal(mask, heads)
    if repair is not None and repair is not False:
        refit(own, mask, repair_batches(repair, own, tokenizer), stack)
    tower, inputs, expected = closed(own, heads, mask)
    with store.folder(path) as scratch:
        write(own, mask, heads, scratch)
        if tokenizer is not None:
            tokenizer.save_pretrained(scratch)
        check_same(_reopened(lambda: read(scratch, own, tower)(inputs), form), expected, form)
    return path


def _reopened(read: Callable[[], Outputs], form: str) -> Outputs:
    """Of the opened export; modeling code that fails on it is an error of this form."""
    try:
        return read()
    except (HeadwiseError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        seen = f"the {form} export was removed: the opened model fails ({type(error).__name__}: {line(error)})"
        raise HeadwiseError(seen, "modeling code that runs with these heads alone") from error


def export_whole(
    save_rest: Callable[[Path], Any],
    encoder: nn.Module,
    mask: torch.Tensor,
    path: str | Path,
    form: str,
    tokenizer: Any,
    stack: str | None = None,
    repair: Repair = None,
) -> Path:
    """Save a trained model without some heads: its pruned encoder and what ``save_rest`` writes."""
    path, encoder = Path(path), merged(encoder)
    store.require_new(path)
    mask = removal(mask, Heads.of(encoder, stack=stack))
    with store.folder(path) as scratch:
        save_rest(scratch)
        _require_fitting(scratch, mask, form)
        export(encoder, mask, scratch / "encoder", form, tokenizer, stack, repair=repair)
        at_root(scratch)
    return path


def _require_fitting(rest: Path, mask: torch.Tensor, form: str) -> None:
    """Output heads that read selected heads, and factors, refer to heads by number."""
    about = store.read_json(rest / ABOUT)
    if not isinstance(about, dict) or about.get("format") != FORMAT or not (rest / HEADS).exists():
        seen = f"no output heads beside the encoder ({HEADS} and {ABOUT})"
        raise HeadwiseError(seen, "a whole model of headwise train or study")
    chosen = about.get("use_heads")
    if chosen is not None and bool((torch.tensor(chosen) & mask).any()):
        raise HeadwiseError("a mask with heads that output heads read directly", "a mask of other heads")
    if form == "compact" and (chosen is not None or (rest / SCALES).exists()):
        seen = "a model that refers to heads by number, and the form compact, which renumbers them"
        raise HeadwiseError(seen, "a form that keeps their numbers", option("form", "sliced"))
    if form == "onnx":
        raise HeadwiseError("a whole model in the form onnx", "its encoder alone", "export(model.encoder, ...)")


def read_mask(path: str | Path) -> torch.Tensor:
    """A bool ``(L, H)`` mask from JSON (rows of true, false) or safetensors (the array ``mask``, or its only one)."""
    path = Path(path)
    if path.suffix == ".safetensors":
        arrays, _ = store.read_arrays(path)
        if "mask" not in arrays and len(arrays) != 1:
            raise HeadwiseError(f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}", "an array named mask", MAKE)
        rows = arrays["mask"] if "mask" in arrays else next(iter(arrays.values()))
    else:
        rows = store.read_json(path)
    try:
        values = torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError) as error:
        raise HeadwiseError(f"{path} is not a table ({error})", "rows of true and false, one row per layer") from None
    if values.ndim != 2:
        raise HeadwiseError(f"{path} holds a table of shape {tuple(values.shape)}", "(layers, heads) of true and false")
    other = values[(values != 0) & (values != 1)]
    if len(other):
        raise HeadwiseError(f"{path} holds the value {other[0].item():g}", "true (cut) and false (keep) only", MAKE)
    return values.bool()


def _write_masked(model: Any, mask: torch.Tensor, heads: Heads, folder: Path) -> None:
    if is_cut(model):
        stacks = [heads for stack in stacks_of(model) if not (heads := Heads.of(model, stack=stack)).alive.all()]
        raise HeadwiseError(
            f"the {', '.join(heads.stack for heads in stacks)} stack has already lost heads, so its shapes differ from "
            "the configuration",
            "a model with all its heads for the form masked",
            SLICED,
        )
    if mask.any():
        fold(model, (~mask).to(model.dtype), heads.stack)
    model.save_pretrained(folder)


def _write_sliced(model: Any, mask: torch.Tensor, heads: Heads, folder: Path) -> None:
    prune(model, mask, heads.stack)
    save_sliced(model, folder)


def _write_compact(model: Any, mask: torch.Tensor, heads: Heads, folder: Path) -> None:
    heads.require_exact("cutting heads")
    if heads.family not in OWN_HEAD_SIZE:
        raise HeadwiseError(
            f"the configuration of {heads.family} has no head size of its own: with fewer heads each would be wider",
            f"one of {', '.join(sorted(OWN_HEAD_SIZE))} for the form compact",
            f"{option('form', 'masked')}, which any program opens, or {SLICED}, which is smaller",
        )
    prune(model, mask, heads.stack)
    stacks = [Heads.of(model, stack=stack) for stack in stacks_of(model)]
    config = _compact_config(model.config, *_even_counts(stacks), heads.head_dim)
    small = type(model)(config).to(model.device, model.dtype)
    small.load_state_dict(_compact_weights(model, stacks))
    if getattr(model, "generation_config", None) is not None:
        small.generation_config = model.generation_config
    small.save_pretrained(folder)


def _even_counts(stacks: list[Heads]) -> tuple[int, int]:
    """The number of heads and key-value groups that every layer keeps, or an error that says how to make it equal."""
    left = {f"{heads.stack} layer {site.layer}": len(site.kept) for heads in stacks for site in heads.sites}
    if len(set(left.values())) > 1 or 0 in left.values():
        goal = max(min(left.values()), stacks[0].num_heads // stacks[0].num_kv_heads)
        steps = [f"leave {goal - count} more in {layer}" for layer, count in left.items() if count < goal]
        steps += [f"cut {count - goal} more in {layer}" for layer, count in left.items() if count > goal]
        raise HeadwiseError(
            f"layers keep {', '.join(map(str, left.values()))} heads",
            f"the same number in every layer{' of every stack' if len(stacks) > 1 else ''} for the form compact",
            f"{', '.join(steps)}; or {SLICED}",
        )
    for heads in stacks:
        kept = sorted({site.kept for site in heads.sites})
        if heads.family in BIAS_OF_FIRST and heads.stack != "cross" and len(kept) > 1:
            raise HeadwiseError(
                f"{heads.stack} layers of {heads.family} keep different heads, but share one position bias per head",
                f"the same heads in every layer, for instance {list(kept[0])}",
                SLICED,
            )
    sizes = [sorted(Counter(h // site.group for h in site.kept).values()) for heads in stacks for site in heads.sites]
    if len({tuple(each) for each in sizes}) > 1 or len(set(sizes[0])) > 1:
        raise HeadwiseError(
            f"the key-value groups of layers keep {' / '.join(', '.join(map(str, each)) for each in sizes)} heads",
            "as many groups in every layer, and as many heads in every group, for the form compact",
            SLICED,
        )
    return sum(sizes[0]), len(sizes[0])


def _compact_config(config: Any, heads: int, groups: int, head_dim: int) -> Any:
    settings = copy.deepcopy(config)
    settings.num_attention_heads, settings.head_dim = heads, head_dim
    if getattr(settings, "num_key_value_heads", None) is not None:
        settings.num_key_value_heads = groups
    try:
        return type(config).from_dict(settings.to_dict())
    except (ValueError, StrictDataclassError) as error:  # some require the hidden size to be a multiple of the heads
        fitting = [n for n in range(1, config.num_attention_heads + 1) if config.hidden_size % n == 0]
        raise HeadwiseError(
            f"{type(config).__name__} refuses {heads} heads: {line(error)}",
            f"a number of heads per layer that divides {config.hidden_size}: {fitting}",
            SLICED,
        ) from None


def _compact_weights(model: Any, stacks: list[Heads]) -> dict[str, torch.Tensor]:
    weights = model.state_dict()
    for heads in stacks:
        table = f"{heads.sites[0].name.rsplit('.', 1)[0]}.relative_attention_bias.weight"
        if table in weights:
            weights[table] = weights[table][:, list(heads.sites[0].kept)]
    return weights


def _write_onnx(model: Any, mask: torch.Tensor, heads: Heads, folder: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, "onnx", "the export form onnx")
    if model.dtype == torch.bfloat16:
        seen = "weights in bfloat16, which onnxruntime does not run on a processor"
        raise HeadwiseError(seen, "float32 or float16 for the form onnx", "model.float()")
    prune(model, mask, heads.stack)
    if heads.family in BIAS_OF_FIRST:  # torch 2.13 cannot export its fused attention with a bias
        model.set_attn_implementation("eager")
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    inputs = sample_inputs(model, batch=2, length=6)
    names = list(outputs(model, inputs))
    free = {k: dict.fromkeys(range(1 if v.is_floating_point() else 2), Dim.DYNAMIC) for k, v in inputs.items()}
    try:
        with warnings.catch_warnings():  # deprecation warnings of torch itself
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _Answers(model, names).eval(),
                (inputs, {}),  # a trailing dict means keyword arguments
                folder / "model.onnx",
                dynamo=True,
                dynamic_shapes=(free,),
                input_names=list(inputs),
                output_names=names,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = line(error.__cause__ or error)
        raise HeadwiseError(f"torch.onnx cannot write {type(model).__name__} ({reason})", "", SLICED) from error
    model.config.save_pretrained(folder)
    store.write_json(folder / ABOUT, {"version": VERSION, "form": "onnx"})


class _Answers(nn.Module):
    """A model that returns plain tensors in a fixed order."""

    def __init__(self, model: nn.Module, names: list[str]):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        answer = self.model(**inputs, return_dict=True)
        return tuple(answer[name] for name in self.names)


def _read_onnx(folder: Path, like: Any, tower: str) -> Callable[[Inputs], Outputs]:
    import onnxruntime  # pyright: ignore[reportMissingImports]

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Inputs) -> Outputs:
        answers = session.run(names, {name: value.cpu().numpy() for name, value in inputs.items()})
        return {name: torch.from_numpy(answer) for name, answer in zip(names, answers)}

    return run


def _read_plain(folder: Path, like: Any, tower: str) -> Callable[[Inputs], Outputs]:
    return _runner(opened(type(like), folder), like, tower)


def _read_sliced(folder: Path, like: Any, tower: str) -> Callable[[Inputs], Outputs]:
    return _runner(load(folder), like, tower)


def _runner(model: Any, like: Any, tower: str) -> Callable[[Inputs], Outputs]:
    model = model.to(like.device).eval()
    kept = {name: value.dtype for name, value in (*like.named_parameters(), *like.named_buffers())}
    for name, value in (*model.named_parameters(), *model.named_buffers()):  # rotary frequencies stay in float32
        value.data = value.data.to(kept.get(name, value.dtype))
    if model.config._attn_implementation != like.config._attn_implementation:
        model.set_attn_implementation(like.config._attn_implementation)
    return lambda inputs: outputs(model, inputs, tower)


FORMS = {
    "masked": (_write_masked, _read_plain),
    "compact": (_write_compact, _read_plain),
    "sliced": (_write_sliced, _read_sliced),
    "onnx": (_write_onnx, _read_onnx),
}


Repair = Iterable[str] | Iterable[dict[str, Any]] | bool | None
SENTENCES, LENGTH, BATCH = 400, 128, 16  # of the embedded corpus; sub-words of a text; texts in a forward


def repair_batches(repair: Any, model: Any, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Batches of a model's inputs from texts, or those given; True stands for sentences of the embedded corpus.

    Example:
        >>> list(repair_batches(["One text.", "Another."], model, tokenizer))[0]["input_ids"].shape
        torch.Size([2, 4])
    """
    corpus = (sentence.text for sentence in islice(sentences("en"), SENTENCES))
    given: list[Any] = list(corpus if repair is True else repair)
    if not all(isinstance(each, str) for each in given):
        yield from given
        return
    if tokenizer is None:
        raise HeadwiseError("texts to refit a model on, and no tokenizer", "its tokenizer, or batches of its inputs")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    length = min(LENGTH, positions(model))
    for start in range(0, len(given), BATCH):
        texts = given[start : start + BATCH]
        batch = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=length)
        if getattr(model.config, "is_encoder_decoder", False):
            batch["decoder_input_ids"] = batch["input_ids"]
        yield {**batch}
