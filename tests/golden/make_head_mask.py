"""Record what transformers' own ``head_mask`` and ``prune_heads`` did while they existed.

Made once, in a throwaway environment, since transformers 5 has neither:

    python -m venv scratch && scratch/bin/pip install torch==2.13.0 transformers==4.57.6
    scratch/bin/python tests/golden/make_head_mask.py

It writes head_mask.safetensors beside itself: for BERT and GPT-2 the weights of a small random model, an input, six
head masks, the outputs and the gradient under each of them, and the output after ``prune_heads`` with the first.
All arithmetic is in float64; the weights are values of float32.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

LAYERS, HEADS = 3, 4
CONFIGS = {
    "bert": transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=16,
        vocab_size=32,
        max_position_embeddings=16,
    ),
    "gpt2": transformers.GPT2Config(
        n_embd=16,
        n_layer=LAYERS,
        n_head=HEADS,
        n_inner=16,
        vocab_size=32,
        n_positions=16,
        bos_token_id=1,
        eos_token_id=1,
    ),
}


def random_model(config) -> torch.nn.Module:
    model = transformers.AutoModel.from_config(config, attn_implementation="eager")
    for parameter in model.parameters():  # default scales leave small models almost linear
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model.double().eval()


def masks() -> torch.Tensor:
    """Cut some heads of each layer, none, a whole layer, one head; and two sets of fractions."""
    some = torch.ones(LAYERS, HEADS)
    some[0, 1] = some[1, [0, 3]] = some[2, 2] = 0
    layer, head = torch.ones(LAYERS, HEADS), torch.ones(LAYERS, HEADS)
    layer[1], head[2, 3] = 0, 0
    return torch.stack(
        [some, torch.ones(LAYERS, HEADS), layer, head, torch.rand(LAYERS, HEADS), torch.randn(LAYERS, HEADS)]
    )


def run(model: torch.nn.Module, inputs: dict, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mask = mask.double().requires_grad_()
    out = model(**inputs, head_mask=mask).last_hidden_state
    return out.detach(), torch.autograd.grad(out.sin().sum(), mask)[0]


def main() -> None:
    assert transformers.__version__ == "4.57.6", transformers.__version__
    torch.manual_seed(20231)
    kept, about = {}, {"transformers": transformers.__version__, "torch": torch.__version__}
    for family, config in CONFIGS.items():
        model, head_masks = random_model(config), masks()
        inputs = {"input_ids": torch.randint(32, (2, 7)), "attention_mask": torch.ones(2, 7, dtype=torch.long)}
        inputs["attention_mask"][1, 5:] = 0
        found = [run(model, inputs, mask) for mask in head_masks]
        kept |= {f"{family}.weights.{name}": value.float() for name, value in model.state_dict().items()}
        kept |= {f"{family}.inputs.{name}": value for name, value in inputs.items()}
        kept[f"{family}.head_masks"] = head_masks
        kept[f"{family}.outputs"] = torch.stack([out for out, _ in found])
        kept[f"{family}.gradients"] = torch.stack([gradient for _, gradient in found])
        model.prune_heads({i: (row == 0).nonzero().flatten().tolist() for i, row in enumerate(head_masks[0])})
        kept[f"{family}.pruned"] = model.double()(**inputs).last_hidden_state.detach()  # it leaves float32 behind
        about[family] = json.dumps(config.to_diff_dict())
    save_file(
        {name: value.contiguous() for name, value in kept.items()},
        Path(__file__).with_name("head_mask.safetensors"),
        about,
    )


if __name__ == "__main__":
    main()
