"""Measure the roles of heads in real models, and write docs/results/roles.md.

    python -m examples.roles --weights FOLDER --out runs/roles [--only PART ...] [--large] [--molecules FILE]
    python -m examples.roles --out runs/roles --records results/roles.json
    python -m examples.roles --records results/roles.json --pages docs/results

FOLDER holds the checkpoints by name; missing ones are skipped. A part that is in OUT already is not
measured again, and one that is in the records alone stays as it is. Alignment needs espeak-ng; atoms need rdkit and a
file of molecules, as examples.reactions does.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from examples.roles import parts
from examples.roles.page import written

from headwise.atlas.speech import Clip
from headwise.tasks.lookup import get

TEXT = ("minilm-l6", "bert-mini", "gte-small", "mpnet-base", "stories15m", "smollm2-135m", "gemma3-270m")
FEW = ("sst2", "agnews", "trec")
DECODERS = ("smollm2-135m", "gemma3-270m")
CLIPS = 40


def clips(count: int = CLIPS, seed: int = 0) -> list[Clip]:
    """Sentences of the embedded corpus in a synthetic voice, with true onsets of all words."""
    from examples.roles.speaking import speak

    rows, found = get("corpus.dep").rows("train"), []
    for i in np.random.default_rng(seed).permutation(len(rows)):
        words = [word for word in rows[i]["words"] if word.isalpha()]
        text = f"{' '.join(words).capitalize()}."
        if 6 <= len(words) <= 12:
            sound, onsets = speak(text)
            if len(onsets) == len(words):  # the voice may run two words together
                found.append(Clip(sound, text, onsets))
        if len(found) == count:
            break
    return found


def mapped(molecules: Path, count: int = 48) -> list[dict[str, Any]]:
    """Reactions as rows of tokens, with links from each product atom to the reactant atoms that it may have been."""
    from examples.reactions.data import make
    from examples.reactions.data import molecules as read

    every = [reaction for some in make(read(molecules)[:6000], 6).values() for reaction in some]
    short = [reaction for reaction in every if len(reaction.tokens) <= 120][:count]
    return [
        {
            "words": list(each.tokens),
            "links": {"atom": [(m.product, k) for m in each.maps for k in sorted({m.reactant, *m.same})]},
        }
        for each in short
    ]


def plan(weights: Path, sizes: dict[str, Any], molecules: Path | None = None) -> dict[str, Any]:
    """What is measured, by the name of its file."""
    works: dict[str, Any] = {f"{name}-attention": partial(parts.attention, weights / name, sizes) for name in TEXT}
    for name in DECODERS:
        for part in (parts.copying, parts.written, parts.functions, parts.languages, parts.kv):
            works[f"{name}-{part.__name__}"] = partial(part, weights / name, sizes)
    works["gemma3-270m-language"] = partial(parts.language, weights / "gemma3-270m", sizes)
    for task in FEW:
        works[f"minilm-l6-few-{task}"] = partial(parts.few, weights / "minilm-l6", sizes, task)
    for name in ("rxnmapper-albert", "rxnfp-pretrained") if molecules else ():
        works[f"{name}-atoms"] = lambda name=name: parts.atoms(weights / name, sizes, mapped(molecules))
    works["whisper-tiny-en-alignment"] = lambda: parts.alignment(weights / "whisper-tiny-en", sizes, clips())
    return works


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--records", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--molecules", type=Path)
    parser.add_argument("--large", action="store_true", help="sizes for an accelerator")
    parser.add_argument("--pages", type=Path)
    args = parser.parse_args()
    sizes = parts.LARGE if args.large else parts.SMALL
    for name, work in plan(args.weights, sizes, args.molecules).items() if args.weights else ():
        args.out.mkdir(parents=True, exist_ok=True)
        file = args.out / f"{name}.json"
        there = any(name.startswith(folder.name) for folder in args.weights.iterdir())
        if there and not file.exists() and (not args.only or any(part in name for part in args.only)):
            start = time.process_time()
            found = {**work(), "seconds": time.process_time() - start, "device": parts.DEVICE}
            file.write_text(json.dumps(found, default=lambda value: value.tolist()))
            print(f"{name}: {time.process_time() - start:.0f} s of a core", flush=True)
    if args.records and args.out:
        found = json.loads(args.records.read_text(encoding="utf-8")) if args.records.exists() else {}
        found |= {file.stem: json.loads(file.read_text()) for file in args.out.glob("*.json")}
        found = {name: found[name] for name in sorted(plan(Path(), {}, Path())) if name in found}
        args.records.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if args.pages:
        records = json.loads(args.records.read_text(encoding="utf-8"))
        (args.pages / "roles.md").write_text(written(records), encoding="utf-8")


if __name__ == "__main__":
    main()
