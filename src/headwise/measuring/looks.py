"""Where each head looks: entropy, share on the previous, next, first and separator tokens, and example maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headwise.heads.gates import Heads, attended, eager, whole_maps
from headwise.heads.modules import evaluating
from headwise.models.subject import Subject

FEATURES = ("entropy", "previous", "next", "first", "separator")


@dataclass(frozen=True)
class Looks:
    """A head's habits, each (L, H), averaged over the texts' tokens, NaN for heads that were cut; entropy in nats."""

    features: dict[str, torch.Tensor]
    examples: list[dict[str, Any]]  # {"tokens": [...], "attention": {"layer.head": rows}}
    texts: int

    def to_record(self) -> tuple[dict[str, dict[str, float]], list[dict[str, Any]]]:
        """By head name, as the report page reads them."""
        layers, heads = next(iter(self.features.values())).shape
        stats = {
            f"{layer}.{head}": {name: round(float(values[layer, head]), 4) for name, values in self.features.items()}
            for layer in range(layers)
            for head in range(heads)
        }
        return stats, self.examples


@torch.no_grad()
def looks(model: Subject, texts: Sequence[str], shown: int = 2, batch_size: int = 32) -> Looks:
    """How every head distributes its attention over some texts.

    Args:
        model: its encoder is run with eager attention and without dropout for this, and restored.
        texts: plain texts.
        shown: keep the whole maps of this many short texts.
        batch_size: texts in one forward.
    """
    heads = model.attention
    sums = {name: torch.zeros(heads.shape, dtype=torch.float64) for name in FEATURES}
    tokens = 0
    special = [i for i in (model.tokenizer.sep_token_id, model.tokenizer.eos_token_id) if i is not None]
    examples = []
    with evaluating(model), eager(model.backbone) as maps:
        for start in range(0, len(texts), batch_size):
            batch = _coded(model, texts[start : start + batch_size])
            whole_BLHTT = torch.stack(whole_maps(maps(**batch), heads), 1)
            found = _features(whole_BLHTT, batch["input_ids"], batch["attention_mask"], special)
            for name, value in found.items():
                sums[name] += value.double().cpu()
            tokens += int(batch["attention_mask"].sum())
        for text in sorted(texts, key=len)[len(texts) // 3 :][:shown]:
            examples.append(_example(model, heads, maps, text))
    return Looks({name: value / max(1, tokens) for name, value in sums.items()}, examples, len(texts))


def _coded(model: Subject, texts: Sequence[str]) -> dict[str, torch.Tensor]:
    coded = model.tokenizer(
        list(texts), padding=True, truncation=True, max_length=model.max_length, return_tensors="pt"
    )
    return {name: value.to(model.device) for name, value in coded.items() if name in ("input_ids", "attention_mask")}


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
    batch = _coded(model, [text])
    batch = {name: value[:, :24] for name, value in batch.items()}
    words = model.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    found = maps(**batch)
    attention = {
        f"{site.layer}.{head}": [[round(x, 2) for x in row] for row in matrix.tolist()]
        for site, layer in zip(attended(heads), found)
        for head, matrix in zip(site.kept, layer[0])
    }
    return {"tokens": words, "attention": attention}
