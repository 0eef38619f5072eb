"""Attention maps, and how each head distributes its attention over texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.equation import whole
from headwise.heads.finding import Site, unwrap
from headwise.heads.gates import Heads
from headwise.heads.modules import evaluating

if TYPE_CHECKING:
    from headwise.models.subject import Subject

FEATURES = ("entropy", "previous", "next", "first", "separator")


@contextmanager
def eager(model: nn.Module) -> Iterator[Callable[..., tuple[torch.Tensor, ...]]]:
    """Run eager attention inside the block; the yielded function returns each layer's maps, (B, H, T, T).

    Fused kernels never compute the maps. The model's own kernel is restored when the block ends.
    """
    inner = unwrap(model)
    before = inner.config._attn_implementation

    def maps(**inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        layers = inner(**inputs, output_attentions=True).attentions
        if layers and any(a is None for a in layers):  # drop layers without attention
            with suppress(HeadwiseError):
                present = [site.module is not None for site in Heads.of(inner).sites]
                if len(present) == len(layers):
                    layers = tuple(a for a, there in zip(layers, present) if there)
        if not layers or any(a is None for a in layers):
            raise HeadwiseError(f"{type(inner).__name__} returns no attention maps", "a model with eager attention")
        return layers

    inner.set_attn_implementation("eager")
    try:
        yield maps
    finally:
        inner.set_attn_implementation(before)


def whole_maps(maps: Iterable[torch.Tensor], heads: Heads) -> list[torch.Tensor]:
    """Attention maps of every layer as (B, H, T, T) in original coordinates; absent heads are NaN."""
    maps = list(maps)
    pairs = zip(maps, attended(heads), strict=True)
    by_layer = {s.layer: whole(a.flatten(2), s, heads.num_heads).unflatten(2, a.shape[2:]) for a, s in pairs}
    nothing = torch.full_like(next(iter(by_layer.values())), float("nan"))
    return [by_layer.get(layer, nothing) for layer in range(heads.num_layers)]


def attended(heads: Heads) -> list[Site]:
    """The layers that have attention."""
    return [site for site in heads.sites if site.module is not None]


@dataclass(frozen=True)
class AttentionPatterns:
    """Features of each head's attention, (L, H), averaged over tokens; entropy in nats; NaN without a head or a map."""

    features: dict[str, torch.Tensor]
    examples: list[dict[str, Any]]  # {"tokens": [...], "attention": {"layer.head": rows}}
    texts: int

    def to_record(self) -> tuple[dict[str, dict[str, float]], list[dict[str, Any]]]:
        """By head name, as the report uses them."""
        layers, heads = next(iter(self.features.values())).shape
        stats = {
            f"{layer}.{head}": {name: round(float(values[layer, head]), 4) for name, values in self.features.items()}
            for layer in range(layers)
            for head in range(heads)
        }
        return stats, self.examples


@torch.no_grad()
def attention_patterns(model: Subject, texts: Sequence[str], shown: int = 2, batch_size: int = 32) -> AttentionPatterns:
    """How every head distributes its attention over some texts; of an encoder with a decoder, the encoder's heads.

    Args:
        model: run with eager attention and without dropout; restored afterwards.
        texts: plain texts.
        shown: number of short texts whose maps are stored.
        batch_size: texts per forward.
    """
    heads, backbone = model.attention, model.backbone
    shape = heads.shape
    if "+" in heads.stack:  # a decoder's maps are of what it writes; the encoder's layers come first
        backbone = backbone.get_encoder()  # type: ignore[operator]
        heads = Heads.of(backbone)
    sums = {name: torch.zeros(heads.shape, dtype=torch.float64) for name in FEATURES}
    tokens = 0
    special = [i for i in (model.tokenizer.sep_token_id, model.tokenizer.eos_token_id) if i is not None]
    examples = []
    with evaluating(model), eager(backbone) as maps:
        for start in range(0, len(texts), batch_size):
            batch = _tokenized(model, texts[start : start + batch_size])
            whole_BLHTT = torch.stack(whole_maps(maps(**batch), heads), 1)
            sums_of_batch = _features(whole_BLHTT, batch["input_ids"], batch["attention_mask"], special)
            for name, value in sums_of_batch.items():
                sums[name] += value.double().cpu()
            tokens += int(batch["attention_mask"].sum())
        for text in sorted(texts, key=len)[len(texts) // 3 :][:shown]:
            examples.append(_example(model, heads, maps, text))
    missing = (0, shape[1] - heads.shape[1], 0, shape[0] - heads.shape[0])
    features = {
        name: torch.nn.functional.pad(value / max(1, tokens), missing, value=float("nan"))
        for name, value in sums.items()
    }
    return AttentionPatterns(features, examples, len(texts))


def _tokenized(model: Subject, texts: Sequence[str]) -> dict[str, torch.Tensor]:
    coded = model.tokenizer(list(texts), truncation=True, max_length=model.max_length)["input_ids"]
    width, filler = max(map(len, coded)), model.tokenizer.pad_token_id or 0  # decoders often have none
    ids = torch.tensor([[*row, *[filler] * (width - len(row))] for row in coded], device=model.device)
    real = torch.tensor([[column < len(row) for column in range(width)] for row in coded], device=model.device)
    return {"input_ids": ids, "attention_mask": real.long()}


def _features(
    maps_BLHTT: torch.Tensor, ids_BT: torch.Tensor, mask_BT: torch.Tensor, special: list[int]
) -> dict[str, torch.Tensor]:
    """Sums over real query tokens, (L, H) each."""
    real = mask_BT[:, None, None, :].to(maps_BLHTT.dtype)

    def total(per_query_BLHT: torch.Tensor) -> torch.Tensor:
        return (per_query_BLHT * real).sum((0, 3))

    pad = torch.nn.functional.pad
    separators = torch.isin(ids_BT, torch.tensor(special, device=ids_BT.device)) & mask_BT.bool()
    return {
        "entropy": total(-torch.xlogy(maps_BLHTT, maps_BLHTT).sum(-1)),
        "previous": total(pad(maps_BLHTT.diagonal(-1, 3, 4), (1, 0))),
        "next": total(pad(maps_BLHTT.diagonal(1, 3, 4), (0, 1))),
        "first": total(maps_BLHTT[torch.arange(len(ids_BT)), ..., mask_BT.long().argmax(1)]),  # behind left padding
        "separator": total((maps_BLHTT * separators[:, None, None, None, :]).sum(-1)),
    }


def _example(model: Subject, heads: Heads, maps: Any, text: str) -> dict[str, Any]:
    batch = _tokenized(model, [text])
    batch = {name: value[:, :24] for name, value in batch.items()}
    words = model.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    layers = maps(**batch)
    attention = {
        f"{site.layer}.{head}": [[round(x, 2) for x in row] for row in matrix.tolist()]
        for site, layer in zip(attended(heads), layers)
        for head, matrix in zip(site.kept, layer[0])
    }
    return {"tokens": words, "attention": attention}


@contextmanager
def streamed(
    model: nn.Module, take: Callable[[int, torch.Tensor], None], heads: Heads | None = None
) -> Iterator[Callable[..., None]]:
    """Call ``take(layer, map_BHTT)`` as each layer's map is computed inside the block, without storing it.

    The yielded function runs an eager forward. A map contains the existing heads, in order (`Site.kept`). Memory is
    that of one layer's map if attention modules always return their maps, or of all maps otherwise (DeBERTa).

    Example:
        >>> with streamed(model, lambda layer, map_BHTT: print(layer, map_BHTT.shape)) as forward:
        ...     forward(**batch)
    """
    inner = unwrap(model)
    heads = heads or Heads.of(inner)
    sites = attended(heads)
    seen = _Seen(take, [(site.layer, len(site.kept)) for site in sites])
    asked: dict[str, bool] = {}

    def forward(**given: torch.Tensor) -> None:
        seen.restart()
        inner(**given, **asked)
        if not seen.count and not asked:
            asked["output_attentions"] = True
            inner(**given, **asked)
        if seen.count != len(sites):
            seen_of = f"{type(inner).__name__} shows the attention maps of {seen.count} of {len(sites)} layers"
            raise HeadwiseError(seen_of, "a model whose attention modules return their maps when they run eagerly")

    before = inner.config._attn_implementation
    inner.set_attn_implementation("eager")
    outer = [module for module in inner.modules() if module is not inner and next(module.children(), None) is not None]
    hooks = [module.register_forward_hook(seen) for module in outer]
    try:
        yield forward
    finally:
        for hook in hooks:
            hook.remove()
        inner.set_attn_implementation(before)


class _Seen:
    """A hook that finds the maps in the outputs of modules; outer modules return the same map again."""

    def __init__(self, take: Callable[[int, torch.Tensor], None], layers: Sequence[tuple[int, int]]):
        self.take, self.layers = take, layers
        self.restart()

    def restart(self) -> None:
        self.count, self.last = 0, None

    def __call__(self, module: nn.Module, args: tuple, output: Any) -> None:
        for part in output if isinstance(output, tuple) else ():
            if self.count < len(self.layers) and part is not self.last and isinstance(part, torch.Tensor):
                layer, heads = self.layers[self.count]
                if part.ndim == 4 and part.shape[1] == heads and part.is_floating_point() and _sums_to_one(part):
                    self.take(layer, part)
                    self.count, self.last = self.count + 1, part


def _sums_to_one(map_BHTT: torch.Tensor) -> bool:
    """Whether rows are distributions over keys, as the biases of positions are not; rows of padding are ignored."""
    if not map_BHTT.shape[-2]:
        return False
    last = map_BHTT[:, :, -1].detach()
    sums = last.sum(-1)
    return bool(((sums > 0.5) & (sums < 1.5)).any() and (last >= 0).all())
